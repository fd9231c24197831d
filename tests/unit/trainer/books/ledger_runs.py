"""Random histories of a ledger: what the trainer would journal, with members in any order."""

from dataclasses import dataclass, field

from hypothesis import strategies as st

from consumers.trainer.books.balance import Rules
from consumers.trainer.books.ledger import Ledger
from infra.runs.journal_reader import Position
from schemas.headers import Purpose
from schemas.journal import (
    Arrived,
    Batch,
    Closed,
    Confirmed,
    GroupsClosed,
    Issued,
    JournalRecord,
    Published,
)

GROUP_SIZE = 3


def rules(**changes: object) -> Rules:
    """Three members, two needed."""
    fields: dict[str, object] = {
        "group_size": GROUP_SIZE,
        "min_group_size": 2,
        "filter_zero_variance": True,
        "max_version_lag": 1,
        "on_stale": "drop",
        "on_failure": "shrink",
    }
    return Rules(**{**fields, **changes})  # type: ignore[arg-type]


def arrived(
    group: int,
    index: int,
    *,
    attempt: int = 0,
    reward: float | None = 1.0,
    oldest: int = 0,
    error: str = "",
) -> Arrived:
    """A report; a failure when `reward` is None."""
    return Arrived(
        type="Trajectory" if reward is not None else "Failure",
        message_id=f"{group}.{index}:{attempt}",
        rollout_id=f"{group}.{index}",
        group=group,
        index=index,
        attempt=attempt,
        purpose=Purpose.TRAIN,
        reward=reward,
        oldest_version=oldest if reward is not None else None,
        newest_version=oldest if reward is not None else None,
        num_tokens=7 if reward is not None else 0,
        error=error,
    )


actions = st.lists(
    st.one_of(
        st.tuples(st.just("issue"), st.integers(1, 3)),
        st.tuples(
            st.just("report"),
            st.integers(-1, 8),
            st.integers(-1, GROUP_SIZE),
            st.sampled_from([0.0, 1.0, None]),
            st.integers(0, 2),
            st.integers(0, 4),
        ),
        st.tuples(st.just("train"), st.integers(1, 2)),
        st.tuples(st.just("publish")),
        st.tuples(st.just("reissue"), st.integers(0, 8)),
    ),
    max_size=80,
)


@dataclass
class History:
    """A ledger and the records that made it."""

    ledger: Ledger
    records: list[JournalRecord] = field(default_factory=list)

    def note(self, record: JournalRecord) -> None:
        """Append and apply, like the trainer."""
        self.records.append(record)
        self.ledger.apply(record, Position("s", len(self.records)))

    def close_due(self) -> None:
        """What the trainer does after reports and publications."""
        due = self.ledger.due()
        if due:
            self.note(GroupsClosed(closed=due))

    def act(self, action: tuple) -> None:  # type: ignore[type-arg]
        """Do one action if it is possible now."""
        kind, ledger = action[0], self.ledger
        if kind == "issue":
            numbers = tuple(range(ledger.num_issued, ledger.num_issued + action[1]))
            self.note(Issued(groups=numbers, min_version=max(0, ledger.version)))
            self.note(Confirmed(groups=numbers))
        elif kind == "report":
            _, group, index, reward, attempt, oldest = action
            self.note(arrived(group, index, reward=reward, attempt=attempt, oldest=oldest))
        elif kind == "train":
            ready = ledger.ready()[: action[1]]
            if len(ready) == action[1]:
                numbers = tuple(group.number for group in ready)
                closed = tuple(Closed(group=number, end="trained") for number in numbers)
                self.note(
                    Batch(
                        step=ledger.step + 1,
                        version=ledger.version,
                        groups=numbers,
                        members=(),
                        closed=closed,
                        releases=len(numbers),
                    )
                )
        elif kind == "publish":
            self.note(Published(version=ledger.version + 1, step=ledger.step, fingerprint="f"))
        elif action[1] in ledger.groups:
            group = ledger.groups[action[1]]
            pending = tuple(group.indexes("pending"))  # type: ignore[arg-type]
            if pending:
                self.note(Issued(groups=(action[1],), indexes=pending, attempt=group.attempt + 1))
        self.close_due()
        for number, indexes in ledger.to_replace():
            attempt = ledger.groups[number].attempt + 1
            self.note(Issued(groups=(number,), indexes=indexes, attempt=attempt))
