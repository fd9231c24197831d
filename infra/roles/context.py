"""What a role is given: its broker, its folder, its stop, and what the trainer says."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from infra.observe.waits import Waits
from infra.runs.folder import RunFolder
from schemas.config import RunConfig
from schemas.control import Command, RunState, Wanted, WeightsPublished
from schemas.headers import Headers

if TYPE_CHECKING:
    from infra.amqp.connection import Broker
    from infra.observe.metrics.exporter import Exporter

logger = logging.getLogger(__name__)

TRAINER = "trainer"
STORE_PATIENCE_S = 10.0
"""A store shared with other runs is believed only after this long without a `RunState`."""
OWN_STORE_PATIENCE_S = 3.0
"""The run's own: a living trainer speaks up within this time, and says whether all is paused."""
_STORE_PERIOD_S = 1.0


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a role is on its way to a wanted state."""

    reached: bool
    detail: str = ""
    """For people: what is still to be done, or what goes on."""


@dataclass(slots=True, kw_only=True, eq=False)
class RoleContext:
    """One role of one process. Everything here belongs to the event loop's thread."""

    role: str
    worker: str
    """Unique in the run."""
    config: RunConfig
    folder: RunFolder
    broker: "Broker"
    waits: Waits
    stop: asyncio.Event
    """SIGTERM, the first SIGINT, a stop command, or the end of the run."""
    run_state: RunState | None = None
    """Newest heard of our run."""
    newest_weights: WeightsPublished | None = None
    """Newest heard or read of our run."""
    describe: Callable[[], Mapping[str, Any]] | None = None
    """Extra fields of the heartbeat."""
    exporter: "Exporter | None" = None
    """This process's metrics endpoint, if it has one."""
    stands: "Callable[[Wanted], Standing] | None" = None
    """How far the role is on its way to a wanted state; see `settling`."""
    command: Command | None = None
    """Newest heard, or heard again."""
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by each command, also by one that comes again."""
    known_run_id: str | None = None
    bound: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once `sync` reaches us: what is broadcast from then on is heard."""
    beat: asyncio.Event = field(default_factory=asyncio.Event)
    """Set to have a heartbeat sent at once: what it tells may not wait."""
    word: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by each `RunState` of our run."""
    _pending_weights: list[WeightsPublished] = field(default_factory=list)
    _pending_states: list[RunState] = field(default_factory=list)
    _pending_commands: list[Command] = field(default_factory=list)
    _weights_callbacks: list[Callable[[WeightsPublished], None]] = field(default_factory=list)
    _state_callbacks: list[Callable[[RunState], None]] = field(default_factory=list)
    _command_callbacks: list[Callable[[Command], None]] = field(default_factory=list)
    _commands: dict[str, int] = field(default_factory=dict)
    _foreign_runs: set[str] = field(default_factory=set)
    _learned: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def app_id(self) -> str:
        """As the broker and others know us."""
        return f"{self.role}/{self.worker}"

    def set_run_id(self, run_id: str) -> None:
        """Fix the run that we belong to. What was heard before is sorted out now."""
        self.known_run_id = run_id
        self._learned.set()
        weights, self._pending_weights = self._pending_weights, []
        states, self._pending_states = self._pending_states, []
        commands, self._pending_commands = self._pending_commands, []
        for state in states:
            self.hear_run_state(state)
        for published in weights:
            self.hear_weights(published)
        for command in commands:
            self.hear_command(command)

    async def run_id(self) -> str:
        """The run's id: from the trainer's `RunState`, else from the newest manifest.

        Raises:
            DeadlinePassed: Neither comes within `deadlines.stall`, which is to stop the role.
        """
        if self.known_run_id is None:
            what = "word from the trainer: the run's id is not known yet"
            async with self.waits(what, deadline_s=self.config.deadlines.stall):
                await self._learn_run_id()
        assert self.known_run_id is not None
        return self.known_run_id

    def on_weights(self, callback: Callable[[WeightsPublished], None]) -> None:
        """Call back for each newer version of this run; at once for one already heard of."""
        self._weights_callbacks.append(callback)
        if self.newest_weights is not None:
            callback(self.newest_weights)

    def on_run_state(self, callback: Callable[[RunState], None]) -> None:
        """Call back for each `RunState` of this run; at once for the newest already heard."""
        self._state_callbacks.append(callback)
        if self.run_state is not None:
            callback(self.run_state)

    def on_command(self, callback: Callable[[Command], None]) -> None:
        """Call back for each operator's command, at once for the newest already heard."""
        self._command_callbacks.append(callback)
        if self.command is not None:
            callback(self.command)

    def heartbeat(self, describe: Callable[[], Mapping[str, Any]]) -> None:
        """Add fields of `Heartbeat` to ours, asked for every time one is sent."""
        self.describe = describe

    def settling(self, stands: Callable[[Wanted], Standing]) -> None:
        """Tell operators how far the role is when the trainer wants a state; asked for it often."""
        self.stands = stands

    @property
    def admits(self) -> bool:
        """Whether the run wants new work to be taken up."""
        state = self.run_state
        return state is None or state.wanted not in (Wanted.PAUSED, Wanted.DRAINING)

    async def unless_stopped(self, work: Awaitable[object]) -> bool:
        """Whether the work was done before the role was told to stop; else it is cancelled."""
        working = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(self.stop.wait())
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
                return True
            return False
        finally:
            for task in (working, stopping):
                task.cancel()
            await asyncio.gather(working, stopping, return_exceptions=True)

    def foreign(self, headers: Headers) -> str | None:
        """Why a message does not belong to this run, or None if it does. A replay belongs to
        whomever it is sent to."""
        if headers.replay or headers.run_id == self.known_run_id:
            return None
        return f"belongs to run {headers.run_id!r}, this is run {self.known_run_id!r}"

    def hear_weights(self, published: WeightsPublished) -> None:
        """Take a broadcast or a manifest; older versions and other runs are ignored."""
        if self.known_run_id is None:
            self._pending_weights.append(published)
            return
        if not self._ours(published.run_id):
            return
        newest = self.newest_weights
        if newest is not None and published.version <= newest.version:
            return
        self.newest_weights = published
        for callback in self._weights_callbacks:
            callback(published)

    def hear_run_state(self, state: RunState) -> None:
        """Take the trainer's word; lower numbers and other runs are ignored."""
        if self.known_run_id is None:
            self._pending_states.append(state)
            if self.role != TRAINER:
                self.set_run_id(state.run_id)
            return
        if not self._ours(state.run_id):
            return
        self.word.set()
        newest = self.run_state
        if newest is not None and _order(state) < _order(newest):
            return
        self.run_state = state
        for callback in self._state_callbacks:
            callback(state)
        if state.wanted is Wanted.STOPPED and self.role != TRAINER and not self.stop.is_set():
            logger.info("the run is over")
            self.stop.set()

    def hear_command(self, command: Command) -> None:
        """Take an operator's command; one that comes again is only answered, one that comes late
        or is meant for another run ignored.

        Numbers of one operator rise from command to command. A command that names no run is for
        who belongs to none yet.
        """
        if command.run_id and self.known_run_id is None:
            self._pending_commands.append(command)
            return
        if self.known_run_id is not None and not command.run_id:
            logger.info("ignoring command %d (%s): it names no run", command.number, command.verb)
            return
        if self.known_run_id is not None and not self._ours(command.run_id):
            return
        heard = self._commands.get(command.by, -1)
        if command.number < heard:
            logger.info("ignoring command %d (%s): heard before", command.number, command.verb)
            return
        self._commands[command.by] = command.number
        self.command = command
        self.asked.set()
        if command.number == heard:
            return
        for callback in self._command_callbacks:
            callback(command)
        if command.verb == "stop" and not self.stop.is_set():
            logger.info("told to stop%s", f" by {command.by}" if command.by else "")
            self.stop.set()

    def _ours(self, run_id: str) -> bool:
        if run_id == self.known_run_id:
            return True
        if run_id not in self._foreign_runs:
            self._foreign_runs.add(run_id)
            logger.warning(
                "ignoring run %s of the same name: this process belongs to run %s; restart it to "
                "join the other",
                run_id,
                self.known_run_id,
            )
        return False

    async def _learn_run_id(self) -> None:
        from infra.roles.newest import newest_manifest
        from infra.weights.errors import StoreFailed

        patience = STORE_PATIENCE_S if self.config.weights.store else OWN_STORE_PATIENCE_S
        asked_at = asyncio.get_running_loop().time()
        while self.known_run_id is None:
            if asyncio.get_running_loop().time() - asked_at >= patience:
                try:
                    manifest = await newest_manifest(self.folder, self.config)
                except StoreFailed as error:
                    logger.warning("%s", error)
                    manifest = None
                if manifest is not None and self.known_run_id is None:
                    self.set_run_id(manifest.run_id)
                    self.hear_weights(manifest)
                    return
            try:
                async with asyncio.timeout(_STORE_PERIOD_S):
                    await self._learned.wait()
            except TimeoutError:
                continue


def _order(state: RunState) -> tuple[int, int]:
    return state.incarnation, state.number
