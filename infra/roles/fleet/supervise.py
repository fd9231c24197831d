"""Watching over the roles of one run until the last of them has left.

RUNNING  --- trainer exits 0 -------> FINISHING  the others hear that the run is over
   |                                     | deadline
   +-- a role dies, or Ctrl-C --------> LEAVING   SIGTERM: everybody hands over
                                         | deadline, or Ctrl-C again
                                         v
                                       SIGKILL    by process group, then by process id
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from infra.roles.context import TRAINER
from infra.roles.errors import ExitCode
from infra.roles.fleet.children import RoleProcess, exit_words
from infra.roles.fleet.interrupts import Interrupts

logger = logging.getLogger(__name__)

_TICK_S = 0.1
_EMPTY_S = 10.0


class Phase(StrEnum):
    """Where a run is."""

    RUNNING = "running"
    """Every role works."""
    FINISHING = "finishing"
    """The trainer is done; the others leave by themselves."""
    LEAVING = "leaving"
    """Everybody was told to leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Seconds granted before the next, less polite step."""

    finish_s: float
    leave_s: float


class Supervisor:
    """Ends when no child runs any more.

    Args:
        children: Started processes.
        interrupts: Signals that the user sent.
        patience: How long to wait for whom.
        each_tick: Called about ten times a second.
    """

    def __init__(
        self,
        children: Sequence[RoleProcess],
        *,
        interrupts: Interrupts,
        patience: Patience,
        each_tick: Callable[[], None],
    ) -> None:
        self._children = list(children)
        self._interrupts = interrupts
        self._patience = patience
        self._each_tick = each_tick
        self._phase = Phase.RUNNING
        self._deadline = float("inf")
        self._left: set[str] = set()
        self._empty: dict[str, float] = {}
        self.failure: tuple[RoleProcess, int] | None = None
        """The first child that failed, with its exit code."""

    def run(self) -> ExitCode:
        """Watch until everybody has left; what the run came to."""
        while self._step(time.monotonic()):
            self._each_tick()
            time.sleep(_TICK_S)
        self._each_tick()
        if self.failure is not None:
            return ExitCode.ROLE_DIED
        return ExitCode.INTERRUPTED if self._interrupts.count else ExitCode.DONE

    def _step(self, now: float) -> bool:
        """Look once; whether anybody still runs."""
        codes = {child.name: child.exit_code() for child in self._children}
        self._note_exits(codes, now)
        if all(code is not None for code in codes.values()):
            return False
        if self._interrupts.count and self._phase in (Phase.RUNNING, Phase.FINISHING):
            logger.warning("handing over and leaving; Ctrl-C again stops at once")
            self._leave(now)
        elif self._interrupts.count > 1:
            logger.warning("stopping at once")
            self._kill("interrupted")
        elif now >= self._deadline and self._phase is Phase.FINISHING:
            logger.warning("still there after the end of the run: %s", self._running())
            self._leave(now)
        elif now >= self._deadline:
            logger.warning("ending those that did not leave: %s", self._running())
            self._kill("too slow")
        if self._phase is Phase.RUNNING:
            self._warn_of_empty_roles(now)
        return True

    def _warn_of_empty_roles(self, now: float) -> None:
        """Not at once: at the end of a run the trainer may be the last to leave."""
        for role, since in list(self._empty.items()):
            if now - since >= _EMPTY_S:
                logger.warning("the trainer goes on, but no %s is left", role)
                del self._empty[role]

    def _note_exits(self, codes: dict[str, int | None], now: float) -> None:
        for child in self._children:
            code = codes[child.name]
            if code is None or child.name in self._left:
                continue
            self._left.add(child.name)
            child.kill()
            if self._phase is Phase.LEAVING:
                logger.info("%s left (%s)", child.name, exit_words(code))
            elif code != 0:
                self.failure = (child, code)
                logger.error("%s died: %s; stopping the others", child.name, exit_words(code))
                self._leave(now)
            elif child.role == TRAINER:
                logger.info("the trainer is done")
                self._phase = Phase.FINISHING
                self._deadline = now + self._patience.finish_s
            elif self._phase is Phase.RUNNING:
                logger.info("%s left", child.name)
                if not any(other.role == child.role for other in self._rest()):
                    self._empty[child.role] = now

    def _leave(self, now: float) -> None:
        self._phase = Phase.LEAVING
        self._deadline = now + self._patience.leave_s
        for child in self._rest():
            child.terminate()

    def _kill(self, why: str) -> None:
        for child in self._rest():
            logger.info("ending %s (%s)", child.name, why)
            child.kill()

    def _rest(self) -> list[RoleProcess]:
        return [child for child in self._children if child.exit_code() is None]

    def _running(self) -> str:
        return ", ".join(child.name for child in self._rest())
