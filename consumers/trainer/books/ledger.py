"""The ledger: what became of every credit. A pure function of the journal's records.

    Issued --> open --> members report (Arrived), in journal order --> nobody pending
                                                                          |
        enough usable members, unequal rewards: ready -- Batch --> trained
        usable but equal -------------------------- GroupsClosed --> filtered
        staleness took the last needed one -------- GroupsClosed --> stale
        too few ----------------------------------- GroupsClosed --> dead
        its step cannot be taken ------- Batch ----- Skipped ------> dead
    Requeued --> a dead member of a group that waits for others: asked for once more
             --> of any other group: its prompt gets another group when there is room

Records are facts and decisions; `due` says which decisions the facts ask for. It has no clock and
does no I/O, so applying the journal again gives the same ledger.
"""

from collections import deque
from typing import Any

from consumers.trainer.books.balance import Books, Report, Rules
from consumers.trainer.books.ends import End, Ends
from consumers.trainer.books.group import Member, MemberState, OpenGroup
from consumers.trainer.books.positions import Positions
from consumers.trainer.books.totals import Totals
from infra.roles.errors import WarrenError
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
    Late,
    Published,
    Requeued,
    Skipped,
)

MAX_CLOSED_EARLY = 64


RULES_CHANGED = (
    "was algorithm.min_group_size, filter_zero_variance, max_version_lag, on_stale or on_failure "
    "changed after a crash? Resume with the old value, stop the trainer in good order, then change"
)


class LedgerError(WarrenError):
    """A record contradicts the ones before it."""

    def __init__(self, message: str) -> None:
        super().__init__(message, hint=RULES_CHANGED)


class Ledger:
    """Groups that are open, how the others ended, and the newest published version."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.groups: dict[int, OpenGroup] = {}
        """Open ones, by number."""
        self.ends = Ends()
        self.num_issued = 0
        """The next credit's number."""
        self.positions = Positions()
        self.totals = Totals()
        self.step = 0
        """Steps decided (a `Batch` each)."""
        self.version = -1
        """Newest published; -1 before the first."""
        self.published_step = 0
        """Steps behind the newest published version."""
        self._able: dict[int, OpenGroup] = {}
        self._due: dict[int, Closed] = {}
        self._failed: set[int] = set()
        self._closed_early: deque[int] = deque(maxlen=MAX_CLOSED_EARLY)

    def apply(self, record: JournalRecord, where: Position | None = None) -> Report | None:
        """Take the next record of the journal; tells what a report came to.

        Raises:
            LedgerError: The record contradicts the ones before it.
        """
        match record:
            case Issued() if record.purpose is Purpose.TRAIN:
                self._issue(record)
            case Confirmed() if record.purpose is Purpose.TRAIN:
                self._confirm(record)
            case Arrived() if record.purpose is Purpose.TRAIN:
                return self._report(record, where)
            case Late() if record.purpose is Purpose.TRAIN:
                self.totals.late += 1
            case Requeued() if record.purpose is Purpose.TRAIN:
                self._requeue(record)
            case Batch():
                self._take(record)
            case GroupsClosed():
                for closed in record.closed:
                    self._close(closed)
            case Skipped():
                self._skip(record)
            case Published():
                self._publish(record)
            case _:
                pass
        return None

    def follow(self, rules: Rules) -> None:
        """Judge by other rules from here on: a trainer went on with another recipe."""
        if rules != self.rules:
            self.rules = rules
            for group in self.groups.values():
                self._judge(group)

    def expects(self, group: int, index: int) -> Report:
        """What a trajectory of this member would come to."""
        if not 0 <= group < self.num_issued or not -1 <= index < self.rules.group_size:
            return Report.UNKNOWN
        found = self.groups.get(group)
        if found is None:
            return Report.LATE
        members = found.members if index < 0 else [found.members[index]]
        pending = any(member.state is MemberState.PENDING for member in members)
        return Report.COUNTED if pending else Report.LATE

    def requeues(self, group: int, index: int) -> Report:
        """What a `Requeued` would come to; late when its prompt or member is asked for already."""
        if not 0 <= group < self.num_issued or not -1 <= index < self.rules.group_size:
            return Report.UNKNOWN
        unfinished = self._unfinished(group)
        if unfinished is not None:
            return Report.COUNTED if _dead(unfinished, index) else Report.LATE
        position = self.positions.of(group)
        others = (other for other in self.groups if other != group)
        asked = position in self.positions.wanted or position in map(self.positions.of, others)
        return Report.LATE if asked else Report.COUNTED

    def due(self) -> tuple[Closed, ...]:
        """Closings that the reports ask for: to be journaled and applied now."""
        return tuple(self._due.values())

    def ready(self) -> list[OpenGroup]:
        """Groups that can be trained, in the order in which batches take them."""
        return sorted(self._able.values(), key=lambda group: (group.bound, group.number))

    @property
    def any_ready(self) -> bool:
        """Whether a group can be trained."""
        return bool(self._able)

    def to_replace(self) -> list[tuple[int, tuple[int, ...]]]:
        """Members that failed and are to be asked for once more, by group."""
        return [
            (number, tuple(i for i, m in enumerate(self.groups[number].members) if m.failed))
            for number in sorted(self._failed)
        ]

    @property
    def closed_early(self) -> tuple[int, ...]:
        """Closed groups of which somebody may still work on a member: it was asked for again."""
        return tuple(sorted(self._closed_early))

    def unconfirmed(self) -> list[OpenGroup]:
        """Groups whose newest credit the broker may not have."""
        return [group for group in self.groups.values() if not group.confirmed]

    def books(self) -> Books:
        """Counts of groups, from three sources that are kept apart."""
        counts = self.ends.counts
        accounted = len(self.groups) + sum(counts.values())
        split = all((self.ends.get(number) is None) for number in self.groups)
        return Books(
            issued=self.num_issued,
            open=len(self.groups),
            trained=counts[End.TRAINED],
            filtered=counts[End.FILTERED],
            stale=counts[End.STALE],
            dead=counts[End.DEAD],
            balanced=split and accounted == self.num_issued,
        )

    def to_json(self) -> dict[str, Any]:
        """For checkpoints."""
        return {
            "num_issued": self.num_issued,
            "positions": self.positions.to_json(),
            "totals": self.totals.to_json(),
            "closed_early": list(self._closed_early),
            "step": self.step,
            "version": self.version,
            "published_step": self.published_step,
            "ends": self.ends.to_json(),
            "groups": [group.to_json() for group in self.groups.values()],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any], rules: Rules) -> "Ledger":
        """The inverse of `to_json`."""
        ledger = cls(rules)
        ledger.num_issued = data["num_issued"]
        if "positions" in data:
            ledger.positions = Positions.from_json(data["positions"])
        ledger.totals = Totals.from_json(data["totals"])
        ledger._closed_early.extend(data["closed_early"])
        ledger.step = data["step"]
        ledger.version = data["version"]
        ledger.published_step = data["published_step"]
        ledger.ends = Ends.from_json(data["ends"])
        groups = [OpenGroup.from_json(group) for group in data["groups"]]
        ledger.groups = {group.number: group for group in groups}
        for group in groups:
            if any(member.failed for member in group.members):
                ledger._failed.add(group.number)
            ledger._judge(group)
        return ledger

    def _issue(self, record: Issued) -> None:
        for place, number in enumerate(record.groups):
            if record.attempt == 0:
                self._issue_new(number, record)
                if record.positions:
                    self._stand_in(number, record.positions[place])
            else:
                self._issue_again(number, record)

    def _issue_new(self, number: int, record: Issued) -> None:
        if number != self.num_issued:
            raise LedgerError(f"credit {number} issued, the next is {self.num_issued}")
        size = self.rules.group_size
        members = [Member(attempt=0, min_version=record.min_version) for _ in range(size)]
        self.groups[number] = OpenGroup(
            number=number,
            members=members,
            min_version=record.min_version,
            asked=tuple(range(size)),
            issued_at=record.at,
        )
        self.num_issued += 1
        self.totals.ask(0, size)

    def _issue_again(self, number: int, record: Issued) -> None:
        group = self.groups.get(number)
        if group is None or record.attempt != group.attempt + 1:
            raise LedgerError(f"attempt {record.attempt} of group {number} does not follow")
        group.attempt, group.asked, group.confirmed = record.attempt, record.indexes, False
        group.issued_at = record.at
        self.totals.ask(record.attempt, len(record.indexes))
        for index in record.indexes:
            member = group.members[index]
            member.attempt = record.attempt
            if member.failed:
                member.failed, member.replaced = False, True
                self.totals.replaced += 1
            else:
                self.totals.reissued += 1
        if not any(member.failed for member in group.members):
            self._failed.discard(number)

    def _stand_in(self, number: int, position: int) -> None:
        if position not in self.positions.wanted:
            raise LedgerError(f"group {number} is issued for position {position} without a wish")
        self.positions.stand_in(number, position)

    def _requeue(self, record: Requeued) -> None:
        if self.requeues(record.group, record.index) is not Report.COUNTED:
            raise LedgerError(f"{record.rollout_id} is requeued, but not dead")
        self.totals.requeued += 1
        group = self._unfinished(record.group)
        if group is None:
            self.positions.want(record.group)
            return
        for member in _dead(group, record.index):
            member.state, member.failed = MemberState.PENDING, True
        self._failed.add(group.number)
        self._judge(group)

    def _unfinished(self, number: int) -> OpenGroup | None:
        """An open group that waits for a member. One that waits for none may be in the batch that
        is being decided."""
        if number in self._able or number in self._due:
            return None
        return self.groups.get(number)

    def _confirm(self, record: Confirmed) -> None:
        for number in record.groups:
            group = self.groups.get(number)
            if group is not None and group.attempt == record.attempt:
                group.confirmed = True

    def _report(self, record: Arrived, where: Position | None) -> Report:
        expected = self.expects(record.group, record.index)
        if expected is Report.COUNTED:
            members = self.groups[record.group].members
            chosen = members if record.index < 0 else [members[record.index]]
            pending = [member for member in chosen if member.state is MemberState.PENDING]
            if record.reward is None:
                pending = [
                    member
                    for member in pending
                    if member.attempt == record.attempt and not member.failed
                ]
            for member in pending:
                self._decide(member, record, where)
            if any(member.failed for member in members):
                self._failed.add(record.group)
            else:
                self._failed.discard(record.group)
            self._judge(self.groups[record.group])
            expected = Report.COUNTED if pending else Report.LATE
        if expected is Report.LATE:
            self.totals.late += 1
        return expected

    def _decide(self, member: Member, record: Arrived, where: Position | None) -> None:
        if record.reward is None:
            self.totals.failed += 1
            member.error = record.error
            if self.rules.on_failure == "replace" and not member.replaced:
                member.failed = True
            else:
                member.state = MemberState.DEAD
            return
        member.state, member.failed = MemberState.USABLE, False
        member.reward, member.oldest_version = record.reward, record.oldest_version
        member.num_tokens, member.where = record.num_tokens, where
        self._expire(member)

    def _expire(self, member: Member) -> None:
        if self.rules.on_stale != "drop" or member.state is not MemberState.USABLE:
            return
        oldest = member.oldest_version
        if oldest is not None and self.version - oldest > self.rules.max_version_lag:
            member.state = MemberState.STALE

    def _take(self, record: Batch) -> None:
        if record.step != self.step + 1:
            raise LedgerError(f"batch of step {record.step} after step {self.step}")
        wrong = [number for number in record.groups if number not in self._able]
        if wrong or len(set(record.groups)) != len(record.groups):
            raise LedgerError(f"step {record.step} takes groups {wrong} that are not ready")
        for closed in record.closed:
            self._close(closed)
        self.step = record.step

    def _close(self, closed: Closed) -> None:
        group = self.groups.pop(closed.group, None)
        if group is None:
            raise LedgerError(f"group {closed.group} ends as {closed.end}, but is not open")
        self.ends.set(closed.group, End(closed.end))
        self._able.pop(closed.group, None)
        self._due.pop(closed.group, None)
        self._failed.discard(closed.group)
        if closed.reason:
            self.totals.explain(closed.end, closed.reason)
        if group.attempt:
            self._closed_early.append(closed.group)

    def _skip(self, record: Skipped) -> None:
        if record.step != self.step:
            raise LedgerError(f"step {record.step} is skipped, the newest is {self.step}")
        for number in record.groups:
            self.ends.die(number)
            self.totals.explain(End.DEAD.value, f"step {record.step} was skipped: {record.reason}")

    def _publish(self, record: Published) -> None:
        if record.version <= self.version:
            raise LedgerError(f"version {record.version} published after {self.version}")
        self.version, self.published_step = record.version, record.step
        for group in self.groups.values():
            for member in group.members:
                self._expire(member)
            self._judge(group)

    def _judge(self, group: OpenGroup) -> None:
        """Once nobody is pending, a group is able to be trained or due to be closed."""
        self._able.pop(group.number, None)
        self._due.pop(group.number, None)
        if any(member.state is MemberState.PENDING for member in group.members):
            return
        verdict = group.verdict(
            min_group_size=self.rules.min_group_size,
            filter_zero_variance=self.rules.filter_zero_variance,
        )
        if verdict is None:
            self._able[group.number] = group
        else:
            self._due[group.number] = verdict


def _dead(group: OpenGroup, index: int) -> list[Member]:
    """Of one member, or of all for -1, those that died."""
    chosen = group.members if index < 0 else [group.members[index]]
    return [member for member in chosen if member.state is MemberState.DEAD]
