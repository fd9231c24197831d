"""The parts of one rollout worker, put together."""

import asyncio
from dataclasses import dataclass
from typing import Any

from consumers.rollout.counters import Counters
from consumers.rollout.delivery.intake import Intake
from consumers.rollout.delivery.outbox import Outbox
from consumers.rollout.departure import Departure
from consumers.rollout.engines.base import Engine
from consumers.rollout.limits import Limits
from consumers.rollout.report import Suspects, rollout_report
from consumers.rollout.runner import Loop, Runner
from consumers.rollout.slots import Slots
from consumers.rollout.sweep import Sweep
from consumers.rollout.tools.running import RunningCalls
from consumers.rollout.updates.gate import Gate, Holds
from consumers.rollout.updates.progress import FruitlessCuts
from consumers.rollout.updates.swap import Swap
from consumers.rollout.updates.sync import HeldWeights, ReadNewest, WeightSync
from infra.roles.context import RoleContext, Standing
from schemas.control import RunState, Wanted


@dataclass(slots=True, eq=False)
class Floor:
    """Slots, intake, sync and what stands between them.

    Attributes:
        failed: Why this worker cannot go on, once it cannot.
        drain_wanted: Set while the run wants everything handed over.
    """

    limits: Limits
    counters: Counters
    slots: Slots
    gate: Gate
    holds: Holds
    outbox: Outbox
    runner: Runner
    intake: Intake
    swap: Swap
    sync: WeightSync
    sweep: Sweep
    departure: Departure
    failed: "asyncio.Future[BaseException]"
    drain_wanted: asyncio.Event
    engine_name: str
    tool_calls: RunningCalls
    suspects: Suspects

    def hear_run_state(self, state: RunState) -> None:
        """What the trainer wants: pausing and draining hold the intake, early ends drop members."""
        self.intake.closed_groups = frozenset(state.closed_early)
        self.holds.put("paused", "the run is paused" if state.wanted is Wanted.PAUSED else "")
        draining = state.wanted is Wanted.DRAINING
        self.holds.put("draining", "the run is draining" if draining else "")
        if draining:
            self.drain_wanted.set()
        self.sync.hear_number(state.version)

    def stands(self, wanted: Wanted) -> Standing:
        """How far this worker is on its way to what the trainer wants."""
        num_held = len(self.slots)
        if wanted is Wanted.DRAINING:
            return Standing(
                self.intake.resting and not num_held,
                f"{num_held} rollouts to hand over" if num_held else "everything handed over",
            )
        if wanted is Wanted.PAUSED:
            return Standing(self.intake.resting, f"admits nothing, {num_held} rollouts run on")
        return Standing(True, f"{num_held} of {self.slots.size} slots taken")

    def describe(self) -> dict[str, Any]:
        """Fields of the heartbeat."""
        counters = self.counters.as_floats()
        ids = []
        unsaved = 0
        for held in self.slots:
            if self.slots.live(held):
                ids.append(held.rollout_id)
            if (state := held.moving) is not None:
                counters["tokens_generated"] += state.num_new_tokens
            unsaved += held.num_unsaved_tokens
        counters["pinned"] = float(self.slots.num_pinned)
        counters["tool_calls"] = float(self.tool_calls.num_calls)
        counters["tool_timeouts"] = float(self.tool_calls.num_timeouts)
        fields: dict[str, Any] = {
            "version": self.swap.version,
            "fingerprint": self.swap.fingerprint,
            "slots": self.slots.size,
            "rollout_ids": tuple(ids),
            "tokens_unsaved": unsaved,
            "refuses": self.sync.refuses,
            "counters": counters,
            "rollout": rollout_report(
                [*self.slots, *self.suspects.arriving],
                engine=self.engine_name,
                stall_timeout_s=self.limits.stall_timeout_s,
                tools=self.tool_calls,
                sync=self.sync,
                sweep=self.sweep,
                counters=self.counters,
            ),
        }
        if self.swap.swapping:
            fields["state"] = "swapping"
        return fields


@dataclass(frozen=True, slots=True)
class _Shared:
    """What nearly every part is given."""

    context: RoleContext
    limits: Limits
    gate: Gate
    counters: Counters
    holds: Holds
    fruitless: FruitlessCuts
    slots: Slots
    outbox: Outbox
    suspects: Suspects


def build_floor(
    context: RoleContext,
    *,
    engine: Engine,
    loop: Loop,
    gate: Gate,
    limits: Limits,
    newest: ReadNewest,
    weights: HeldWeights,
) -> Floor:
    """Connect the parts.

    Args:
        context: Of the role.
        engine: Not started yet.
        loop: The agent loop.
        gate: What the loop awaits before each request.
        limits: Of this worker.
        newest: Reads the newest manifest of this run.
        weights: Fetches and verifies versions.
    """
    shared = _share(context, limits, gate)
    counters, holds, slots, outbox = shared.counters, shared.holds, shared.slots, shared.outbox
    failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    runner = _runner(shared, loop, failed)
    swap = _swap(shared, engine, runner)
    departure = Departure(
        slots=slots, runner=runner, outbox=outbox, holds=holds, grace_s=limits.grace_s
    )
    sync = WeightSync(
        newest=newest,
        weights=weights,
        swap=swap,
        on_refused=departure.give_back_waiting,
        holds=holds,
        counters=counters,
        waits=context.waits,
        limits=limits,
    )
    intake = _intake(shared, runner, sync)
    return Floor(
        limits=limits,
        counters=counters,
        slots=slots,
        gate=gate,
        holds=holds,
        outbox=outbox,
        runner=runner,
        intake=intake,
        swap=swap,
        sync=sync,
        sweep=_sweep(shared, runner, intake),
        departure=departure,
        failed=failed,
        drain_wanted=asyncio.Event(),
        engine_name=context.config.rollout.engine,
        tool_calls=loop.tool_calls,
        suspects=shared.suspects,
    )


def _share(context: RoleContext, limits: Limits, gate: Gate) -> _Shared:
    broker, counters = context.broker, Counters()
    slots = Slots(limits.slots, broker.held)
    return _Shared(
        context=context,
        limits=limits,
        gate=gate,
        counters=counters,
        holds=Holds(),
        fruitless=FruitlessCuts(),
        slots=slots,
        outbox=Outbox(broker=broker, slots=slots, counters=counters, worker=context.worker),
        suspects=Suspects(context.beat),
    )


def _runner(shared: _Shared, loop: Loop, failed: "asyncio.Future[BaseException]") -> Runner:
    def on_failed(error: BaseException) -> None:
        if not failed.done():
            failed.set_result(error)

    def on_free() -> None:
        if not shared.slots.num_alone:
            shared.holds.put("alone", "")
        shared.holds.freed()

    return Runner(
        loop=loop,
        slots=shared.slots,
        outbox=shared.outbox,
        counters=shared.counters,
        fruitless=shared.fruitless,
        worker=shared.context.worker,
        confirm_patience_s=shared.limits.confirm_patience_s,
        data_attempts=shared.limits.data_attempts,
        on_failed=on_failed,
        on_free=on_free,
    )


def _swap(shared: _Shared, engine: Engine, runner: Runner) -> Swap:
    return Swap(
        engine=engine,
        slots=shared.slots,
        runner=runner,
        outbox=shared.outbox,
        gate=shared.gate,
        holds=shared.holds,
        fruitless=shared.fruitless,
        counters=shared.counters,
        limits=shared.limits,
        on_sync=shared.context.config.rollout.on_sync,
    )


def _intake(shared: _Shared, runner: Runner, sync: WeightSync) -> Intake:
    return Intake(
        broker=shared.context.broker,
        slots=shared.slots,
        runner=runner,
        outbox=shared.outbox,
        holds=shared.holds,
        foreign=shared.context.foreign,
        newest=lambda: sync.newest_number,
        waits=shared.context.waits,
        limits=shared.limits,
        on_suspect=shared.suspects.tell,
    )


def _sweep(shared: _Shared, runner: Runner, intake: Intake) -> Sweep:
    return Sweep(
        slots=shared.slots,
        runner=runner,
        outbox=shared.outbox,
        intake=intake,
        gate=shared.gate,
        holds=shared.holds,
        counters=shared.counters,
        waits=shared.context.waits,
        limits=shared.limits,
    )
