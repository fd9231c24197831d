"""A newest version that nobody can serve: its files are damaged, say. It must go out again."""

from consumers.trainer.steering.clock import PausableClock
from consumers.trainer.steering.fleet import Fleet

PATIENCE_S = 5.0
"""Whoever failed to read a version tries again every two seconds."""
MAX_PATIENCE_S = 600.0


class Refusals:
    """Tells when the newest version is to be published again, under the next number.

    Until one serves what went out again, twice as long is waited each time: what all of them refuse
    because of a fault of their own would be published for ever, also beside steps whose rollouts
    are of an older version.

    Args:
        fleet: What the rollout workers say.
        clock: Of the trainer.
    """

    def __init__(self, fleet: Fleet, clock: PausableClock) -> None:
        self._fleet = fleet
        self._clock = clock
        self._patience_s = PATIENCE_S
        self._version = -1
        self._since: float | None = None
        self._again: int | None = None

    def due(self, version: int) -> bool:
        """Whether all have refused the newest version for a while. Ask every second or so."""
        if self._again is not None and self._fleet.newest_served() >= self._again:
            self._again, self._patience_s = None, PATIENCE_S
        if version < 0 or not self._fleet.refuses(version):
            self._since = None
            return False
        now = self._clock.now()
        if self._since is None or version != self._version:
            self._version, self._since = version, now
        return now - self._since >= self._patience_s

    def published_again(self, version: int) -> None:
        """It is out, as this version."""
        self._since, self._again = None, version
        self._patience_s = min(MAX_PATIENCE_S, 2 * self._patience_s)
