"""The parts of one rollout worker, put together."""

import asyncio
from dataclasses import dataclass
from typing import Any

from consumers.rollout.counters import Counters
from consumers.rollout.departure import Departure
from consumers.rollout.engines.base import Engine
from consumers.rollout.gate import Gate, Holds
from consumers.rollout.intake import Intake
from consumers.rollout.limits import Limits
from consumers.rollout.outbox import Outbox
from consumers.rollout.progress import FruitlessCuts
from consumers.rollout.runner import Loop, Runner
from consumers.rollout.slots import Slots
from consumers.rollout.swap import Swap
from consumers.rollout.sweep import Sweep
from consumers.rollout.sync import Prepare, ReadNewest, WeightSync
from infra.roles.context import RoleContext
from schemas.control import RunState, Wanted


@dataclass(slots=True, eq=False)
class Floor:
    """Slots, intake, sync and what stands between them.

    Attributes:
        failed: Why this worker cannot go on, once it cannot.
        drain_wanted: Set while the run wants everything handed over.
    """

    engine: Engine
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

    def hear_run_state(self, state: RunState) -> None:
        """What the trainer wants: pausing and draining hold the intake, early ends drop members."""
        self.intake.closed_groups = frozenset(state.closed_early)
        self.holds.put("paused", "the run is paused" if state.wanted is Wanted.PAUSED else "")
        draining = state.wanted is Wanted.DRAINING
        self.holds.put("draining", "the run is draining" if draining else "")
        if draining:
            self.drain_wanted.set()
        self.sync.hear_number(state.version)

    def describe(self) -> dict[str, Any]:
        """Fields of the heartbeat."""
        counters = self.counters.as_floats()
        ids = []
        for held in self.slots:
            if self.slots.live(held):
                ids.append(held.rollout_id)
            if (state := held.interruptible) is not None:
                counters["tokens_generated"] += state.num_new_tokens
        fields: dict[str, Any] = {
            "version": self.swap.version,
            "fingerprint": self.swap.fingerprint,
            "slots": self.slots.size,
            "rollout_ids": tuple(ids),
            "counters": counters,
        }
        if self.swap.swapping:
            fields["state"] = "swapping"
        return fields


def build_floor(
    context: RoleContext,
    *,
    engine: Engine,
    loop: Loop,
    gate: Gate,
    limits: Limits,
    newest: ReadNewest,
    prepare: Prepare,
) -> Floor:
    """Connect the parts.

    Args:
        context: Of the role.
        engine: Not started yet.
        loop: The agent loop.
        gate: What the loop awaits before each request.
        limits: Of this worker.
        newest: Reads the newest manifest of this run.
        prepare: Fetches and verifies a version, in a thread.
    """
    broker, waits, worker = context.broker, context.waits, context.worker
    counters, holds, fruitless = Counters(), Holds(), FruitlessCuts()
    slots = Slots(limits.slots, broker.held)
    outbox = Outbox(broker=broker, slots=slots, counters=counters, worker=worker)
    failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    def on_failed(error: BaseException) -> None:
        if not failed.done():
            failed.set_result(error)

    def on_free() -> None:
        if not slots.num_alone:
            holds.put("alone", "")
        holds.freed()

    runner = Runner(
        loop=loop,
        slots=slots,
        outbox=outbox,
        counters=counters,
        fruitless=fruitless,
        worker=worker,
        confirm_patience_s=limits.confirm_patience_s,
        on_failed=on_failed,
        on_free=on_free,
    )
    intake = Intake(
        broker=broker,
        slots=slots,
        runner=runner,
        outbox=outbox,
        holds=holds,
        foreign=context.foreign,
        waits=waits,
        limits=limits,
    )
    swap = Swap(
        engine=engine,
        slots=slots,
        runner=runner,
        outbox=outbox,
        gate=gate,
        holds=holds,
        fruitless=fruitless,
        counters=counters,
        limits=limits,
        on_sync=context.config.rollout.on_sync,
    )
    departure = Departure(
        slots=slots, runner=runner, outbox=outbox, holds=holds, grace_s=limits.grace_s
    )
    sync = WeightSync(
        newest=newest,
        prepare=prepare,
        swap=swap,
        on_refused=departure.give_back_waiting,
        holds=holds,
        waits=waits,
        limits=limits,
    )
    sweep = Sweep(
        slots=slots,
        runner=runner,
        outbox=outbox,
        intake=intake,
        gate=gate,
        holds=holds,
        counters=counters,
        waits=waits,
        limits=limits,
    )
    return Floor(
        engine=engine,
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
        sweep=sweep,
        departure=departure,
        failed=failed,
        drain_wanted=asyncio.Event(),
    )
