"""Poison and innocents: what a message is allowed that comes back again and again.

A worker that dies takes all its deliveries back to the queue, the poisonous one and the others
alike. After a few returns without progress a message runs alone, so that only the guilty one goes
on counting; then it is dead.
"""

from dataclasses import dataclass
from enum import StrEnum

from schemas.headers import Headers

ALONE_FROM = 3
"""Returns without progress from which a message runs alone."""
MAX_RETURNS = 6
"""Returns without progress that are allowed."""
MAX_RETURNS_TOTAL = 30
"""The same, never reset."""


class Verdict(StrEnum):
    """How a message may be run."""

    RUN = "run"
    """Beside others."""
    ALONE = "alone"
    """While this worker does nothing else."""
    DEAD = "dead"
    """Not at all."""


@dataclass(frozen=True, slots=True)
class Returns:
    """How often a message came back without new tokens or a new turn."""

    since_progress: int = 0
    total: int = 0
    """Never reset."""

    @classmethod
    def of(cls, headers: Headers, *, redelivered: bool, delivery_count: int) -> "Returns":
        """What the headers count, and the deliveries that the broker had to take back since.

        Brokers that do not count deliveries only tell that there was one (`redelivered`).
        """
        taken_back = max(delivery_count, int(redelivered))
        return cls(headers.returns + taken_back, headers.returns_total + taken_back)

    def given_back(self, *, progressed: bool, excused: bool) -> "Returns":
        """After it was given back to the queue.

        Args:
            progressed: Tokens or a turn were gained since it was taken.
            excused: It was cut by new weights, which is not its fault.
        """
        if progressed:
            return Returns(0, self.total)
        if excused:
            return self
        return Returns(self.since_progress + 1, self.total + 1)

    def stalled(self, *, progressed: bool) -> "Returns":
        """After it was handed over because it did not move any more.

        What it gained before excuses nothing: a rollout that stalls wherever it goes must end.
        """
        return Returns((0 if progressed else self.since_progress) + 1, self.total + 1)

    @property
    def verdict(self) -> Verdict:
        """How it may be run."""
        if self.since_progress > MAX_RETURNS or self.total > MAX_RETURNS_TOTAL:
            return Verdict.DEAD
        return Verdict.ALONE if self.since_progress >= ALONE_FROM else Verdict.RUN
