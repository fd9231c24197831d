"""Held-out evaluations: which version is asked for, what was scored. Pure, like the ledger."""

from dataclasses import dataclass, field
from typing import Any

from consumers.trainer.books.balance import Report
from schemas.headers import Purpose
from schemas.journal import Arrived, Confirmed, Evaluated, Issued, JournalRecord, Late, Requeued


@dataclass(slots=True)
class OpenEvaluation:
    """One version's evaluation, until it is complete or out of time."""

    version: int
    num_asked: int
    confirmed: bool = False
    """Whether the broker took the newest credit."""
    attempt: int = 0
    """Of the newest credit."""
    asked: tuple[int, ...] = ()
    """Members that the newest credit asks for."""
    attempts: dict[int, int] = field(default_factory=dict)
    """Of members that were asked for again."""
    rewards: dict[int, float] = field(default_factory=dict)
    """By member."""
    failed: set[int] = field(default_factory=set)
    again: set[int] = field(default_factory=set)
    """Failed ones that an operator wants back: to be asked for once more."""
    num_other_version: int = 0
    """Members with tokens of another version."""
    num_tokens: int = 0

    @property
    def complete(self) -> bool:
        """Whether every member was scored or failed."""
        return len(self.rewards) + len(self.failed) >= self.num_asked

    @property
    def pending(self) -> tuple[int, ...]:
        """Members of which nothing terminal was heard."""
        known = self.rewards.keys() | self.failed
        return tuple(index for index in range(self.num_asked) if index not in known)

    def result(self) -> Evaluated:
        """What it came to so far: the mean over members that were scored."""
        num_scored = len(self.rewards)
        total = sum(self.rewards[index] for index in sorted(self.rewards))
        metrics = {
            "eval/num_failed": float(len(self.failed)),
            "eval/num_other_version": float(self.num_other_version),
            "eval/tokens_mean": self.num_tokens / num_scored if num_scored else 0.0,
        }
        return Evaluated(
            version=self.version,
            num_scored=num_scored,
            num_asked=self.num_asked,
            reward=total / num_scored if num_scored else 0.0,
            metrics=metrics,
        )


class Evaluations:
    """At most one is open at a time."""

    def __init__(self) -> None:
        self.open: OpenEvaluation | None = None
        self.last_version = -1
        """Of the newest one that was asked for."""
        self.num_late = 0

    def due(self, version: int, *, every: int, last: bool = False) -> bool:
        """Whether `version` is to be evaluated: the first, every so many, and the last one."""
        if self.open is not None or version <= self.last_version:
            return False
        return self.last_version < 0 or last or version - self.last_version >= every

    def expects(self, version: int, index: int) -> Report:
        """What a report of this member would come to."""
        if version > self.last_version:
            return Report.UNKNOWN
        if self.open is None or version != self.open.version:
            return Report.LATE
        if not -1 <= index < self.open.num_asked:
            return Report.UNKNOWN
        known = index in self.open.rewards or index in self.open.failed
        return Report.LATE if known else Report.COUNTED

    def requeues(self, version: int, index: int) -> Report:
        """What a `Requeued` would come to; unknown when its evaluation is not open."""
        one = self.open
        if one is None or version != one.version or not -1 <= index < one.num_asked:
            return Report.UNKNOWN
        return Report.COUNTED if _failed(one, index) else Report.LATE

    @property
    def to_repeat(self) -> tuple[int, ...]:
        """Members of the open one that are to be asked for once more."""
        return () if self.open is None else tuple(sorted(self.open.again))

    def apply(self, record: JournalRecord) -> Report | None:
        """Take the next record of the journal; tells what a report came to."""
        match record:
            case Issued() if record.purpose is Purpose.EVAL:
                self._issue(record)
            case Confirmed() if record.purpose is Purpose.EVAL:
                one = self.open
                if one is not None and (one.version, one.attempt) == (
                    record.groups[0],
                    record.attempt,
                ):
                    one.confirmed = True
            case Arrived() if record.purpose is Purpose.EVAL:
                report = self._report(record)
                self.num_late += report is Report.LATE
                return report
            case Late() if record.purpose is Purpose.EVAL:
                self.num_late += 1
            case Requeued() if record.purpose is Purpose.EVAL:
                if (one := self.open) is not None and one.version == record.group:
                    wanted = _failed(one, record.index)
                    one.failed -= wanted
                    one.again |= wanted
            case Evaluated():
                self.open = None
            case _:
                pass
        return None

    def to_json(self) -> dict[str, Any]:
        """For checkpoints."""
        one = self.open
        return {
            "last_version": self.last_version,
            "num_late": self.num_late,
            "open": None
            if one is None
            else {
                "version": one.version,
                "num_asked": one.num_asked,
                "confirmed": one.confirmed,
                "attempt": one.attempt,
                "asked": list(one.asked),
                "attempts": sorted(one.attempts.items()),
                "rewards": sorted(one.rewards.items()),
                "failed": sorted(one.failed),
                "again": sorted(one.again),
                "num_other_version": one.num_other_version,
                "num_tokens": one.num_tokens,
            },
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Evaluations":
        """The inverse of `to_json`."""
        evaluations = cls()
        evaluations.last_version = data["last_version"]
        evaluations.num_late = data["num_late"]
        if data["open"] is not None:
            fields = dict(data["open"])
            fields["rewards"] = dict(fields["rewards"])
            fields["failed"] = set(fields["failed"])
            fields["again"] = set(fields.get("again", ()))
            fields["asked"] = tuple(fields["asked"])
            fields["attempts"] = dict(fields["attempts"])
            evaluations.open = OpenEvaluation(**fields)
        return evaluations

    def _issue(self, record: Issued) -> None:
        if record.attempt == 0:
            self.open = OpenEvaluation(record.groups[0], len(record.indexes))
            self.last_version = record.groups[0]
        one = self.open
        if one is not None and one.version == record.groups[0]:
            one.attempt, one.asked, one.confirmed = record.attempt, record.indexes, False
            one.again -= set(record.indexes)
            if record.attempt:
                one.attempts.update(dict.fromkeys(record.indexes, record.attempt))

    def _report(self, record: Arrived) -> Report:
        expected = self.expects(record.group, record.index)
        one = self.open
        if expected is not Report.COUNTED or one is None:
            return expected
        if record.reward is None:
            missing = one.pending if record.index < 0 else (record.index,)
            failed = {i for i in missing if one.attempts.get(i, 0) == record.attempt}
            one.failed |= failed
            return Report.COUNTED if failed else Report.LATE
        one.rewards[record.index] = record.reward
        one.num_tokens += record.num_tokens
        versions = {record.oldest_version, record.newest_version}
        one.num_other_version += versions != {one.version}
        return expected


def _failed(one: OpenEvaluation, index: int) -> set[int]:
    """Of one member, or of all for -1, those that failed."""
    return set(one.failed) if index < 0 else one.failed & {index}
