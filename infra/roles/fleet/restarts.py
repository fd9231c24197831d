"""Whether a process that ended is started again, and when: pure, no clock of its own."""

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass

from infra.roles.errors import ExitCode
from schemas.config import SuperviseSection

INCURABLE: Mapping[int, str] = {
    ExitCode.USAGE: "a wrong configuration gets no better",
    ExitCode.DEADLINE: "a deadline stopped it",
    ExitCode.UNBALANCED: "the books do not balance",
    ExitCode.STEP_FAILED: "the same step failed twice",
}
"""Exit codes that a second start would only bring about again, and why."""

TELLING = frozenset((*INCURABLE, ExitCode.BROKER_UNREACHABLE, ExitCode.NO_HANDOVER))
"""Exit codes of a role that become those of the run which it ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Permission to start a process again."""

    delay_s: float
    number: int
    """Its deaths within the window, this one included."""
    limit: int
    window_s: float

    def __str__(self) -> str:
        return (
            f"starting it again in {self.delay_s:.3g} s "
            f"({self.number} of {self.limit} within {self.window_s:.0f} s)"
        )


class Restarts:
    """Counts the deaths of each process within a sliding window.

    Args:
        section: How often, how soon, how long a death is remembered.
    """

    def __init__(self, section: SuperviseSection) -> None:
        self._section = section
        self._deaths: dict[str, deque[float]] = defaultdict(deque)

    def after_death(self, name: str, now: float) -> Restart | None:
        """Note one; None when there were too many.

        The pause before restart n is `backoff * 2 ** (n - 1)` seconds, at most `max_backoff`.
        """
        section, deaths = self._section, self._deaths[name]
        while deaths and now - deaths[0] > section.window:
            deaths.popleft()
        deaths.append(now)
        number = len(deaths)
        if number > section.restarts:
            return None
        doubled = section.backoff * 2.0 ** min(number - 1, 60)
        return Restart(
            delay_s=min(section.max_backoff, doubled),
            number=number,
            limit=section.restarts,
            window_s=section.window,
        )
