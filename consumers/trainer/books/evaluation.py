"""Held-out evaluations: which version is asked for, what was scored. Pure, like the ledger."""

from dataclasses import dataclass, field
from typing import Any

from consumers.trainer.books.balance import Report
from schemas.headers import Purpose
from schemas.journal import Arrived, Confirmed, Evaluated, Issued, JournalRecord


@dataclass(slots=True)
class OpenEvaluation:
    """One version's evaluation, until it is complete or out of time."""

    version: int
    num_asked: int
    confirmed: bool = False
    rewards: dict[int, float] = field(default_factory=dict)
    """By member."""
    failed: set[int] = field(default_factory=set)
    num_other_version: int = 0
    """Members with tokens of another version."""
    num_tokens: int = 0

    @property
    def complete(self) -> bool:
        """Whether every member was scored or failed."""
        return len(self.rewards) + len(self.failed) >= self.num_asked

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

    def apply(self, record: JournalRecord) -> Report | None:
        """Take the next record of the journal; tells what a report came to."""
        match record:
            case Issued() if record.purpose is Purpose.EVAL:
                if record.attempt == 0:
                    self.open = OpenEvaluation(record.groups[0], len(record.indexes))
                    self.last_version = record.groups[0]
            case Confirmed() if record.purpose is Purpose.EVAL:
                if self.open is not None and self.open.version == record.groups[0]:
                    self.open.confirmed = True
            case Arrived() if record.purpose is Purpose.EVAL:
                return self._report(record)
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
            "open": None
            if one is None
            else {
                "version": one.version,
                "num_asked": one.num_asked,
                "confirmed": one.confirmed,
                "rewards": sorted(one.rewards.items()),
                "failed": sorted(one.failed),
                "num_other_version": one.num_other_version,
                "num_tokens": one.num_tokens,
            },
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Evaluations":
        """The inverse of `to_json`."""
        evaluations = cls()
        evaluations.last_version = data["last_version"]
        if data["open"] is not None:
            fields = dict(data["open"])
            fields["rewards"] = dict(fields["rewards"])
            fields["failed"] = set(fields["failed"])
            evaluations.open = OpenEvaluation(**fields)
        return evaluations

    def _report(self, record: Arrived) -> Report:
        expected = self.expects(record.group, record.index)
        one = self.open
        if expected is not Report.COUNTED or one is None:
            return expected
        if record.reward is None:
            missing = range(one.num_asked) if record.index < 0 else [record.index]
            one.failed.update(index for index in missing if index not in one.rewards)
            return expected
        one.rewards[record.index] = record.reward
        one.num_tokens += record.num_tokens
        versions = {record.oldest_version, record.newest_version}
        one.num_other_version += versions != {one.version}
        return expected
