"""A newest version that nobody can serve: its files are damaged, say. It must go out again."""

from consumers.trainer.steering.clock import PausableClock
from consumers.trainer.steering.fleet import Fleet

PATIENCE_S = 5.0
"""Whoever failed to read a version tries again every two seconds."""
MAX_PATIENCE_S = 600.0


class Refusals:
    """Tells when the newest version is to be published again, under the next number.

    Each time that this did not help, twice as long is waited: what all of them refuse because of
    a fault of their own would be published for ever.

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

    def due(self, version: int) -> bool:
        """Whether all have refused the newest version for a while. Ask every second or so."""
        if version < 0 or not self._fleet.refuses(version):
            self._since = None
            return False
        now = self._clock.now()
        if self._since is None or version != self._version:
            self._version, self._since = version, now
        return now - self._since >= self._patience_s

    def published_again(self) -> None:
        """It is out under another number."""
        self._since = None
        self._patience_s = min(MAX_PATIENCE_S, 2 * self._patience_s)

    def stepped(self) -> None:
        """The run goes on."""
        self._patience_s = PATIENCE_S
