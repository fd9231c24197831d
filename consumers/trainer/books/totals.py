"""What the ledger counts beside groups: reports, requests, and why groups were lost."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Self

MAX_REASONS = 64
OTHER = "(other reasons)"


@dataclass(slots=True)
class Totals:
    """Counts since the run began."""

    late: int = 0
    """Reports of members that were decided before, or of an older attempt's failure."""
    failed: int = 0
    """Members' failures that counted."""
    replaced: int = 0
    """Of these, members that were asked for once more: `on_failure = "replace"`, or requeued."""
    reissued: int = 0
    """Members that were asked for again because they were lost."""
    requeued: int = 0
    """Dead members that an operator wanted back."""
    asked: Counter[int] = field(default_factory=Counter)
    """Members asked for, by attempt."""
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Groups by end and reason. Past `MAX_REASONS` different ones, further ones share a line."""

    def ask(self, attempt: int, num_members: int) -> None:
        """A credit asks for members."""
        self.asked[attempt] += num_members

    def explain(self, end: str, reason: str) -> None:
        """A group ended so, for this reason."""
        if (end, reason) not in self.reasons and len(self.reasons) >= MAX_REASONS:
            reason = OTHER
        self.reasons[end, reason] += 1

    def counts(self) -> dict[str, int]:
        """Of members, by name."""
        return {
            "failed": self.failed,
            "replaced": self.replaced,
            "reissued": self.reissued,
            "late": self.late,
            "requeued": self.requeued,
        }

    def to_json(self) -> dict[str, Any]:
        """For checkpoints."""
        return {
            "late": self.late,
            "failed": self.failed,
            "replaced": self.replaced,
            "reissued": self.reissued,
            "requeued": self.requeued,
            "asked": sorted(self.asked.items()),
            "reasons": [[*key, count] for key, count in self.reasons.items()],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The inverse of `to_json`."""
        fields = dict(data)
        fields["asked"] = Counter(dict(data["asked"]))
        fields["reasons"] = Counter({(end, why): count for end, why, count in data["reasons"]})
        return cls(**fields)
