"""One task per running rollout: from being taken up to the confirm of what it came to.

taken -> admitted? -> begin / restore -> run -+-> Rollout, failure -> publish ------> gone
                                              |   failure, not the last -> back -> gone
           ^  no: waits in its slot           +-> Snapshot, task --> publish
           |                                            confirmed --> gone
         swapped, or alone at last                      not in time, or no delivery is ours
                                                           --> restored here, goes on
no delivery is ours: a finished rollout is kept until one comes again
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from consumers.rollout.agents.record import to_snapshot
from consumers.rollout.agents.state import CutReason, RolloutFailed, RolloutState
from consumers.rollout.counters import Counters
from consumers.rollout.delivery.outbox import Outbox, Sent
from consumers.rollout.delivery.poison import Verdict
from consumers.rollout.delivery.snapshots import returns_of, uncounted_headers
from consumers.rollout.engines.base import EngineFailed
from consumers.rollout.slots import Held, Outcome, Slots, Work
from consumers.rollout.tools.running import RunningCalls
from consumers.rollout.updates.progress import FruitlessCuts
from schemas.headers import Headers
from schemas.work import Rollout, RolloutTask, Snapshot

logger = logging.getLogger(__name__)

_END_S = 1.0
"""For a cancelled task to end; in an engine that hangs it may not."""


class Loop(Protocol):
    """The part of `AgentLoop` that is used here."""

    @property
    def tool_calls(self) -> RunningCalls: ...

    def begin(self, task: RolloutTask) -> RolloutState: ...

    def restore(self, snapshot: Snapshot) -> RolloutState: ...

    async def run(self, state: RolloutState) -> Rollout | Snapshot | RolloutTask: ...

    async def cut_all(self, states: Iterable[RolloutState], reason: CutReason) -> None: ...


class Runner:
    """Starts rollouts, cuts them, and sees to what they come to.

    Args:
        loop: The agent loop.
        slots: What is held.
        outbox: The way out.
        counters: Of this worker.
        fruitless: Memory of cuts before the first token.
        worker: Name of this worker.
        confirm_patience_s: For the confirm of a snapshot.
        data_attempts: Times that a rollout may fail by itself.
        on_failed: Told when the engine dies, or this worker cannot go on for another reason.
        on_free: Told whenever a slot is free again.
    """

    def __init__(
        self,
        *,
        loop: Loop,
        slots: Slots,
        outbox: Outbox,
        counters: Counters,
        fruitless: FruitlessCuts,
        worker: str,
        confirm_patience_s: float,
        data_attempts: int,
        on_failed: Callable[[BaseException], None],
        on_free: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._slots = slots
        self._outbox = outbox
        self._counters = counters
        self._fruitless = fruitless
        self._worker = worker
        self._patience_s = confirm_patience_s
        self._data_attempts = data_attempts
        self._on_failed = on_failed
        self._on_free = on_free
        self._tasks: set[asyncio.Task[None]] = set()
        self._cuts: set[asyncio.Task[None]] = set()
        self.served_version = -1
        """What the engine serves; rollouts that need more wait in their slots."""
        self.leaving = False
        """What is cut now leaves, however long the confirm takes."""
        self.engine_hangs = False
        """What is in the engine is not to be had by a cut."""

    @property
    def tasks(self) -> set["asyncio.Task[None]"]:
        """Every rollout under way."""
        return set(self._tasks)

    def take(self, held: Held) -> None:
        """Take up a rollout; it starts now, or when it may."""
        self._slots.put(held)
        self._start_if_allowed(held)

    def start_allowed(self) -> None:
        """Start what waited for weights, or for being alone."""
        for held in self._slots:
            if held.waiting:
                self._start_if_allowed(held)

    def readopt(self, held: Held, delivery_headers: Headers) -> None:
        """A delivery was attached: publish what waited for one."""
        self._counters.readopted += 1
        logger.info("%s is running here already: adopted", delivery_headers.name)
        if held.outcome is not None:
            outcome, held.outcome = held.outcome, None
            held.runner = self._spawn(self._finish(held, outcome))

    async def cut(
        self, held: Iterable[Held], reason: CutReason, *, version: int | None = None
    ) -> list[asyncio.Event]:
        """Cut rollouts; each event is set once that cut is confirmed, refused or came too late."""
        events = []
        asked = []
        for one in held:
            if (state := one.interruptible) is None or not state.interruptible(reason):
                continue
            one.cut_version = version
            one.cut_settled = one.cut_settled or asyncio.Event()
            events.append(one.cut_settled)
            asked.append((one, state))
        try:
            await self._loop.cut_all([state for _, state in asked], reason)
        except EngineFailed as error:
            self._on_failed(error)
        for one, state in asked:
            if one.state is state and state.cut_reason is None:  # its turn ended meanwhile
                one.settle_cut()
        return events

    def cut_soon(self, held: Iterable[Held], reason: CutReason) -> None:
        """Cut rollouts without waiting for the engine to hear of it."""
        if chosen := list(held):
            self._spawn(self._cut_and_forget(chosen, reason), self._cuts)

    def end_cuts(self) -> None:
        """An engine that hangs will not answer these."""
        for cut in self._cuts:
            cut.cancel()

    def return_soon(self, held: Held) -> None:
        """Give back what was not admitted for long, so that another worker can have it."""
        if not held.publishing:
            held.publishing = True
            self._spawn(self._return(held))

    async def salvage(self, held: Held) -> None:
        """Take a rollout out of an engine that does not obey: as far as it came, it goes back."""
        if held.runner is not None:
            held.runner.cancel()
            await asyncio.wait({held.runner}, timeout=_END_S)
        held.suspected = True
        self._note(held)
        await self._given_back(held, self._salvaged(held))

    def abandon(self, held: Held) -> None:
        """Stop generating, and free the slot."""
        if held.runner is not None:
            held.runner.cancel()
        self._slots.remove(held)
        held.settle_cut()
        self._freed()

    # -- inside

    def _start_if_allowed(self, held: Held) -> None:
        if self.leaving or held.publishing or held.headers.min_version > self.served_version:
            return
        if self._slots.num_alone and not self._may_start_beside(held):
            return
        if held.alone:
            logger.warning(
                "%s came back %d times without progress: it runs alone",
                held.rollout_id,
                held.returns.since_progress,
            )
        held.runner = self._spawn(self._run(held))

    def _may_start_beside(self, held: Held) -> bool:
        others = [one for one in self._slots if one is not held and one.runner is not None]
        return not others or not (held.alone or any(one.alone for one in others))

    def _spawn(
        self,
        work: "asyncio._CoroutineLike[None]",
        among: "set[asyncio.Task[None]] | None" = None,
    ) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        (self._tasks if among is None else among).add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._cuts.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failed(error)

    async def _run(self, held: Held) -> None:
        work = held.work
        if isinstance(work, Snapshot):
            self._counters.resumed += 1
            self._counters.resumed_elsewhere += work.worker != self._worker
        while True:
            outcome = await self._attempt(held, work)
            self._note(held)
            if isinstance(outcome, Rollout | RolloutFailed):
                await self._finish(held, outcome)
                return
            if await self._given_back(held, outcome):
                return
            work = outcome

    async def _attempt(self, held: Held, work: Work) -> Outcome:
        try:
            if isinstance(work, Snapshot):
                held.state = self._loop.restore(work)
                held.resumed = True
            else:
                held.state = self._loop.begin(work)
            return await self._loop.run(held.state)
        except RolloutFailed as error:
            return error
        except EngineFailed as error:
            self.leaving = True
            self._on_failed(error)
            held.suspected = True
            return self._salvaged(held)
        except Exception as error:
            # boundary: an error of an agent, an interaction, a parser or a tool's description ends
            # this attempt, never the rollouts beside it
            logger.exception("%s failed", held.rollout_id)
            failed = RolloutFailed(f"{type(error).__name__}: {error}")
            return failed.with_traceback(error.__traceback__)

    async def _cut_and_forget(self, held: list[Held], reason: CutReason) -> None:
        await self.cut(held, reason)

    async def _return(self, held: Held) -> None:
        try:
            await self._outbox.give_back(held, uncounted_headers(held))
        finally:
            held.publishing = False
        self.abandon(held)

    async def _given_back(self, held: Held, outcome: Snapshot | RolloutTask) -> bool:
        """Whether the queue has it; otherwise it goes on here."""
        state = held.state
        if (failed := self._stalled_too_often(held, outcome)) is not None:
            await self._finish(held, failed)
            return True
        by_sync = state is not None and state.cut_reason is CutReason.SYNC
        if isinstance(outcome, Snapshot):
            self._counters.interruptions += 1
        elif by_sync:
            self._fruitless.note_tokenless(held.rollout_id)
        patience_s = None if self.leaving else self._patience_s
        sent = await self._deliver(held, outcome, timeout_s=patience_s)
        if sent is Sent.UNCONFIRMED and self.leaving:  # told to leave in the meantime
            sent = await self._deliver(held, outcome)
        if sent is Sent.CONFIRMED:
            held.settle_cut()
            self._freed()
            return True
        if self.leaving:
            held.outcome, held.runner = outcome, None
            held.settle_cut()
            return True
        self._counters.unconfirmed_cuts += sent is Sent.UNCONFIRMED
        held.age_s = held.still_s = 0.0
        held.settle_cut()
        return False

    def _stalled_too_often(
        self, held: Held, outcome: Snapshot | RolloutTask
    ) -> RolloutFailed | None:
        state = held.state
        if state is None or state.cut_reason is not CutReason.STALL:
            return None
        returns = returns_of(held, outcome)
        if returns.verdict is not Verdict.DEAD:
            return None
        return RolloutFailed(
            f"stalled: no token, turn or tool result any more in {state.phase} at token "
            f"{len(state.token_ids)}; it came back {returns.total - 1} times before",
            final=True,
        )

    async def _deliver(
        self, held: Held, outcome: Outcome, *, timeout_s: float | None = None
    ) -> Sent:
        held.publishing = True
        try:
            return await self._outbox.deliver(held, outcome, timeout_s=timeout_s)
        finally:
            held.publishing = False

    def _salvaged(self, held: Held) -> Snapshot | RolloutTask:
        """What can be handed over of a rollout whose engine died."""
        state = held.state
        assert state is not None
        if state.pinned or state.newest_version is None:
            return state.task
        return to_snapshot(state, worker=self._worker, reason=state.cut_reason or CutReason.LEAVE)

    async def _finish(self, held: Held, outcome: Outcome) -> None:
        held.settle_cut()
        if isinstance(outcome, RolloutFailed) and self._may_try_again(held, outcome):
            sent = await self._try_again(held, outcome)
        else:
            sent = await self._deliver(held, outcome)
        if sent is Sent.NOT_OURS:
            held.outcome, held.runner = outcome, None
            return
        self._counters.rollouts_finished += isinstance(outcome, Rollout)
        self._freed()

    def _may_try_again(self, held: Held, failed: RolloutFailed) -> bool:
        return not failed.final and held.headers.data_attempts + 1 < self._data_attempts

    async def _try_again(self, held: Held, failed: RolloutFailed) -> Sent:
        """Back to where it was taken up; for the last attempt to its plain task, for the fault may
        lie in the snapshot."""
        number = held.headers.data_attempts + 1
        logger.warning(
            "%s failed, attempt %d of %d: %s", held.rollout_id, number, self._data_attempts, failed
        )
        held.publishing = True
        try:
            sent = await self._outbox.try_again(held, anew=number + 1 == self._data_attempts)
        finally:
            held.publishing = False
        self._counters.data_retries += sent is Sent.CONFIRMED
        return sent

    def _note(self, held: Held) -> None:
        """Book what the state gained before it is replaced."""
        state = held.state
        if state is None:
            return
        held.progressed |= state.num_new_tokens > 0 or state.num_new_turns > 0
        held.num_noted += state.num_new_tokens
        self._counters.tokens_generated += state.num_new_tokens
        self._counters.tokens_prefilled += state.num_prefilled - held.num_prefilled
        self._counters.tokens_cached += state.num_cached - held.num_cached
        self._counters.tokens_reprefilled += state.num_reprefilled - held.num_reprefilled
        held.num_prefilled = state.num_prefilled
        held.num_cached = state.num_cached
        held.num_reprefilled = state.num_reprefilled

    def _freed(self) -> None:
        self.start_allowed()
        self._on_free()
