"""The look over all slots, a few times a second: whatever depends on time.

Ages stand still while the broker is away or blocked, while the run is paused, while weights are
swapped, and over a gap in which this process did not run at all.
"""

import asyncio
import logging
import time
from contextlib import AsyncExitStack

from consumers.rollout.agents.state import CutReason
from consumers.rollout.counters import Counters
from consumers.rollout.delivery.intake import Intake
from consumers.rollout.delivery.outbox import Outbox
from consumers.rollout.delivery.reading import closed_early
from consumers.rollout.engines.base import EngineFailed
from consumers.rollout.limits import Limits
from consumers.rollout.runner import Runner
from consumers.rollout.slots import Held, Slots
from consumers.rollout.stalls import StallWatch
from consumers.rollout.updates.gate import Gate, Holds
from infra.observe.waits import Waits

logger = logging.getLogger(__name__)


class Sweep:
    """Cuts what is old or does not move, drops what nobody needs, and names a version that does
    not come.

    Args:
        slots: What is held.
        runner: Cuts and abandons.
        outbox: Knows whether the broker is there.
        intake: Knows which groups are closed.
        gate: Closed during a swap.
        holds: Woken when a lost delivery frees a slot; tell whether the run is paused.
        counters: Of this worker.
        waits: Of the role.
        limits: Of this worker.
    """

    def __init__(
        self,
        *,
        slots: Slots,
        runner: Runner,
        outbox: Outbox,
        intake: Intake,
        gate: Gate,
        holds: Holds,
        counters: Counters,
        waits: Waits,
        limits: Limits,
    ) -> None:
        self._slots = slots
        self._runner = runner
        self._outbox = outbox
        self._intake = intake
        self._gate = gate
        self._holds = holds
        self._counters = counters
        self._waits = waits
        self._limits = limits
        self._stalls = StallWatch(timeout_s=limits.stall_timeout_s, counters=counters)

    @property
    def token_age_s(self) -> float:
        """Since the engine gave a token to anybody, while it had something to do."""
        return self._stalls.token_age_s

    async def run(self) -> None:
        """Sweep until cancelled.

        Raises:
            EngineFailed: The engine hangs.
            DeadlinePassed: A version does not come for too long, and `on_deadline` is `stop`.
        """
        last = time.monotonic()
        named = False
        async with AsyncExitStack() as waiting:
            while True:
                await asyncio.sleep(self._limits.sweep_s)
                now = time.monotonic()
                await self.once(min(now - last, 2 * self._limits.sweep_s))
                last = now
                if bool(self._behind()) == named:
                    continue
                await waiting.aclose()
                named = not named
                if named:
                    wait = self._waits(self._unserved, deadline_s=self._limits.stall_s)
                    await waiting.enter_async_context(wait)

    async def once(self, elapsed_s: float) -> None:
        """One look, `elapsed_s` after the last one.

        Raises:
            EngineFailed: The engine hangs.
        """
        if not self._outbox.connected:
            return
        standing_still = self._outbox.blocked or not self._gate.is_open or "paused" in self._holds
        for held in self._slots:
            if closed_early(held.headers, self._intake.closed_groups):
                self._drop(held)
            elif not self._slots.live(held):
                self._lost(held, elapsed_s)
            elif not standing_still:
                held.age_s += elapsed_s
        self._holds.freed()
        if not standing_still:
            self._save_old()
            self._end_stalled(elapsed_s)

    def _save_old(self) -> None:
        """Hand over what has run for long. What gained nothing has nothing to save."""
        interval_s = self._limits.snapshot_interval_s
        old = [
            held
            for held in self._slots
            if held.age_s > interval_s * held.jitter and self._slots.live(held)
        ]
        self._runner.cut_soon(
            [held for held in old if held.gained and _uncut(held)], CutReason.INTERVAL
        )
        for held in old:
            if held.waiting:
                self._runner.return_soon(held)

    def _end_stalled(self, elapsed_s: float) -> None:
        """Hand over what does not move.

        Raises:
            EngineFailed: It is the engine that does not.
        """
        stalled = self._stalls.look(
            [held for held in self._slots if self._slots.live(held)], elapsed_s
        )
        for held in stalled:
            logger.warning(
                "%s stalls: no token, turn or tool result for %.0f s (%s): handed over",
                held.rollout_id,
                self._limits.stall_timeout_s,
                _where(held),
            )
        self._counters.stalled += len(stalled)
        if not self._stalls.engine_hangs:
            self._runner.cut_soon(stalled, CutReason.STALL)
            return
        self._runner.engine_hangs = True
        longest = max(self._slots, key=lambda held: held.still_s)
        raise EngineFailed(
            f"the engine hangs: no token to any of {len(self._slots)} rollouts for "
            f"{self._limits.stall_timeout_s:g} s; {longest.rollout_id}: {_where(longest)}",
            hint="all are handed over as far as they came; [rollout] stall_timeout sets the time",
        )

    def _drop(self, held: Held) -> None:
        logger.info("%s is dropped: its group was closed early", held.rollout_id)
        self._outbox.drop(held)
        self._runner.abandon(held)

    def _lost(self, held: Held, elapsed_s: float) -> None:
        """Its message is with the broker again: to us, or to another worker."""
        held.lost_s += elapsed_s
        if held.waiting or held.lost_s > self._limits.readopt_s:
            self._counters.orphans_dropped += not held.waiting
            self._runner.abandon(held)

    def _behind(self) -> list[Held]:
        """Rollouts that wait for a version that is not served yet."""
        served = self._runner.served_version
        return [held for held in self._slots if held.waiting and held.headers.min_version > served]

    def _unserved(self) -> str:
        held = self._behind()
        version = max((one.headers.min_version for one in held), default=0)
        served = self._runner.served_version
        return f"version {version}: {len(held)} rollouts need it, version {served} is served"


def _uncut(held: Held) -> bool:
    return held.state is not None and held.state.cut_reason is None


def _where(held: Held) -> str:
    state = held.state
    if state is None:
        return "not admitted"
    return f"{state.phase} at token {len(state.token_ids)}"
