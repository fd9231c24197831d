"""Watching over the roles of one run until the last of them has left.

            +-- a role dies: a pause, then it is started again; the others go on
            v   |
RUNNING ----+---+- trainer exits 0, run over --> FINISHING  the others hear that the run is over
   |                                                | deadline
   +-- a death too many, an incurable one,          v
       Ctrl-C, or the trainer left early --------> LEAVING  SIGTERM: everybody hands over
                                                    | deadline, or Ctrl-C again
                                                    v
                                                  SIGKILL   by process group, then by process id
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
from infra.roles.fleet.restarts import INCURABLE, TELLING, Restart, Restarts
from schemas.config import SuperviseSection

logger = logging.getLogger(__name__)

_TICK_S = 0.1
_EMPTY_S = 10.0


class Phase(StrEnum):
    """Where a run is."""

    RUNNING = "running"
    """Every role works, or is about to be started again."""
    FINISHING = "finishing"
    """The run is over; the others leave by themselves."""
    LEAVING = "leaving"
    """Everybody was told to leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Seconds granted before the next, less polite step."""

    finish_s: float
    leave_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What the supervisor asks of whoever started the processes."""

    each_tick: Callable[[], None]
    """Called about ten times a second."""
    restart: Callable[[RoleProcess], None]
    """End what a dead process left behind and start it again; may raise OSError."""
    changed: Callable[[], None]
    """Somebody ended or was started."""
    is_over: Callable[[], bool]
    """Whether the run has come to its end: the trainer has written its last line."""


class Supervisor:
    """Ends when no child runs any more.

    Args:
        children: Started processes.
        supervise: When to start one again.
        interrupts: Signals that the user sent.
        patience: How long to wait for whom.
        hooks: The outside.
    """

    def __init__(
        self,
        children: Sequence[RoleProcess],
        *,
        supervise: SuperviseSection,
        interrupts: Interrupts,
        patience: Patience,
        hooks: Hooks,
    ) -> None:
        self._children = list(children)
        self._leavers = supervise.leavers
        self._restarts = Restarts(supervise)
        self._interrupts = interrupts
        self._patience = patience
        self._hooks = hooks
        self._phase = Phase.RUNNING
        self._deadline = float("inf")
        self._left: set[str] = set()
        self._down: dict[str, float] = {}
        self._empty: dict[str, float] = {}
        self._early = False
        self.failure: tuple[RoleProcess, int] | None = None
        """The child that ended the run by failing, with its exit code."""

    def run(self) -> ExitCode:
        """Watch until everybody has left; what the run came to."""
        while self._step(time.monotonic()):
            self._hooks.each_tick()
            time.sleep(_TICK_S)
        self._hooks.each_tick()
        if self.failure is not None:
            code = self.failure[1]
            return ExitCode(code) if code in TELLING else ExitCode.ROLE_DIED
        early = self._interrupts.count or self._early
        return ExitCode.INTERRUPTED if early else ExitCode.DONE

    def _step(self, now: float) -> bool:
        """Look once; whether anybody still runs or is to run again."""
        self._note_exits(now)
        if self._interrupts.count and self._phase in (Phase.RUNNING, Phase.FINISHING):
            logger.warning("handing over and leaving; Ctrl-C again stops at once")
            self._leave(now)
        elif self._interrupts.count > 1:
            logger.warning("stopping at once")
            self._kill("interrupted")
        elif now >= self._deadline and self._phase is Phase.FINISHING:
            logger.info("still there after the end of the run: %s", self._running())
            self._leave(now)
        elif now >= self._deadline:
            logger.warning("ending those that did not leave: %s", self._running())
            self._kill("too slow")
        if self._phase is Phase.RUNNING:
            self._start_again(now)
            self._warn_of_empty_roles(now)
        return len(self._left) < len(self._children)

    def _note_exits(self, now: float) -> None:
        ended = [(child, child.exit_code()) for child in self._watched()]
        for child, code in ended:
            if code is None:
                continue
            child.kill()
            self._left.add(child.name)
            if self._phase is Phase.LEAVING:
                logger.info("%s left (%s)", child.name, exit_words(code))
            elif self._phase is Phase.FINISHING:
                tell = logger.warning if code else logger.debug
                tell("%s ended after the run was over (%s)", child.name, exit_words(code))
            elif code == 0:
                self._note_leaver(child, now)
            else:
                self._note_death(child, code, now)
            self._hooks.changed()

    def _note_death(self, child: RoleProcess, code: int, now: float) -> None:
        incurable = INCURABLE.get(code)
        restart = None if incurable else self._restarts.after_death(child.name, now)
        if restart is not None:
            self._await_restart(child, restart, f"died ({exit_words(code)})", now)
            return
        self.failure = (child, code)
        why = incurable or "too often"
        logger.error("%s died (%s): %s; stopping the others", child.name, exit_words(code), why)
        self._leave(now)

    def _note_leaver(self, child: RoleProcess, now: float) -> None:
        """Exit code 0: at the end of the run, or because somebody told this one to leave."""
        over = self._hooks.is_over()
        if self._leavers and not over:
            restart = self._restarts.after_death(child.name, now)
            if restart is not None:
                self._await_restart(child, restart, "left", now)
                return
        if child.role == TRAINER and over:
            logger.info("the trainer is done")
            self._phase = Phase.FINISHING
            self._deadline = now + self._patience.finish_s
            self._restart_nobody()
        elif child.role == TRAINER:
            logger.warning("the trainer left before the end of the run; --resume goes on with it")
            self._early = True
            self._leave(now)
        else:
            logger.info("%s left", child.name)
            if not any(other.role == child.role for other in self._rest()):
                self._empty[child.role] = now

    def _await_restart(self, child: RoleProcess, restart: Restart, what: str, now: float) -> None:
        logger.warning("%s %s; %s", child.name, what, restart)
        self._left.discard(child.name)
        self._down[child.name] = now + restart.delay_s

    def _start_again(self, now: float) -> None:
        for child in self._children:
            if self._down.get(child.name, float("inf")) > now:
                continue
            try:
                self._hooks.restart(child)
            except OSError as error:
                restart = self._restarts.after_death(child.name, now)
                if restart is None:
                    del self._down[child.name]
                    self._left.add(child.name)
                    self.failure = (child, ExitCode.FAILED)
                    logger.error("%s cannot be started (%s)", child.name, error)
                    self._leave(now)
                    return
                self._await_restart(child, restart, f"cannot be started ({error})", now)
                continue
            del self._down[child.name]
            logger.info("%s runs again", child.name)
            self._empty.pop(child.role, None)
            self._hooks.changed()

    def _warn_of_empty_roles(self, now: float) -> None:
        """Not at once: at the end of a run the trainer may be the last to leave."""
        for role, since in list(self._empty.items()):
            if now - since >= _EMPTY_S:
                logger.warning("the trainer goes on, but no %s is left", role)
                del self._empty[role]

    def _leave(self, now: float) -> None:
        """Tell everybody; who waits for a restart has left already."""
        self._phase = Phase.LEAVING
        self._deadline = now + self._patience.leave_s
        self._restart_nobody()
        for child in self._rest():
            child.terminate()

    def _restart_nobody(self) -> None:
        self._left |= self._down.keys()
        self._down.clear()

    def _kill(self, why: str) -> None:
        for child in self._rest():
            logger.info("ending %s (%s)", child.name, why)
            child.kill()

    def _watched(self) -> list[RoleProcess]:
        """Those whose end has not been noted yet."""
        gone = self._left | self._down.keys()
        return [child for child in self._children if child.name not in gone]

    def _rest(self) -> list[RoleProcess]:
        return [child for child in self._watched() if child.exit_code() is None]

    def _running(self) -> str:
        return ", ".join(child.name for child in self._rest())
