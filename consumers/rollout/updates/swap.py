"""One swap, step by step.

wait (bounded) until resumed rollouts gained a token
close the gate and the intake
republish: cut what generates, each confirmed, then acknowledged   (drain: let turns end first)
           not confirmed in time -> stays, goes on under the new weights
load in place; the fingerprint proves what is served
open the gate and the intake
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Literal, TypeVar

from consumers.rollout.agents.state import CutReason
from consumers.rollout.counters import Counters
from consumers.rollout.delivery.outbox import Outbox
from consumers.rollout.engines.base import Engine, EngineFailed, WeightsRefused
from consumers.rollout.limits import Limits
from consumers.rollout.runner import Runner
from consumers.rollout.slots import Held, Slots
from consumers.rollout.updates.gate import Gate, Holds
from consumers.rollout.updates.progress import FruitlessCuts, to_cut, waiting_for_progress
from infra.roles.errors import WarrenError
from infra.weights.prepared import PreparedWeights, ServedWeights

logger = logging.getLogger(__name__)

_GLANCE_S = 0.01
_CUT_MARGIN_S = 1.0

T = TypeVar("T")

Reread = Callable[[], Awaitable[PreparedWeights]]


class Swap:
    """Puts prepared weights into the engine.

    Args:
        engine: Generates.
        slots: What is held.
        runner: Cuts and is told the version.
        outbox: Tells whether the broker takes snapshots now.
        gate: Before each engine request.
        holds: For the intake.
        fruitless: Who was cut in vain.
        counters: Of this worker.
        limits: Of this worker.
        on_sync: What happens to what generates.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        slots: Slots,
        runner: Runner,
        outbox: Outbox,
        gate: Gate,
        holds: Holds,
        fruitless: FruitlessCuts,
        counters: Counters,
        limits: Limits,
        on_sync: Literal["republish", "in_flight", "drain"],
    ) -> None:
        self._engine = engine
        self._slots = slots
        self._runner = runner
        self._outbox = outbox
        self._gate = gate
        self._holds = holds
        self._fruitless = fruitless
        self._counters = counters
        self._limits = limits
        self._on_sync = on_sync
        self._served = ServedWeights(version=-1, fingerprint="")

    @property
    def version(self) -> int:
        """Served now, measured; -1 before the engine runs."""
        return self._served.version

    @property
    def fingerprint(self) -> str:
        """Of what is served, measured."""
        return self._served.fingerprint

    @property
    def swapping(self) -> bool:
        """Whether a swap is under way."""
        return not self._gate.is_open

    async def start(self, weights: PreparedWeights) -> None:
        """Start the engine on the first weights.

        Raises:
            EngineFailed: It does not come up, or serves something else.
            WeightsRefused: They do not fit the model.
        """
        await self._engine.start(weights)
        self._measure(weights)

    async def __call__(self, weights: PreparedWeights, *, fetch_s: float, reread: Reread) -> bool:
        """Swap; False when the engine refused the weights, also on a second reading.

        Args:
            weights: Verified, in memory.
            fetch_s: What reading them took, for the log.
            reread: Reads them once more.

        Raises:
            EngineFailed: The engine died or hangs, or does not serve what was loaded.
        """
        before = self.version
        await self._until(self._progressed, self._limits.max_swap_delay_s)
        began = time.monotonic()
        self._gate.close()
        self._holds.put("swap", f"version {weights.version} is being loaded")
        try:
            num_cut, cut_s = await self._clear_engine(weights.version)
            cleared = time.monotonic()
            taken = await self._load(weights, reread)
        finally:
            self._gate.open()
            self._holds.put("swap", "")
        ended = time.monotonic()
        self._counters.swaps += taken
        self._counters.swap_s += ended - began
        logger.info(
            "version %d -> %d · %d cut, %d stay (%d pinned) · fetch %.2f s, cut %.2f s, "
            "publish %.2f s, swap %.2f s",
            before,
            self.version,
            num_cut,
            len(self._slots),
            self._slots.num_pinned,
            fetch_s,
            cut_s,
            cleared - began - cut_s,
            ended - cleared,
        )
        self._runner.start_allowed()
        return taken

    # -- inside

    def _progressed(self) -> bool:
        return not waiting_for_progress(self._slots, min_progress=self._limits.min_progress)

    def _turns_ended(self) -> bool:
        return not any(_generates(held) for held in self._slots)

    async def _clear_engine(self, version: int) -> tuple[int, float]:
        """Take rollouts out of the engine as `on_sync` says.

        Returns:
            How many were cut, and the seconds until the engine had been told.
        """
        began = time.monotonic()
        drained = True
        if self._on_sync == "drain":
            drained = await self._until(self._turns_ended, self._limits.drain_deadline_s)
        chosen = []
        if self._on_sync != "in_flight" and self._outbox.available:
            chosen = [
                held
                for held in to_cut(
                    self._slots,
                    self._fruitless,
                    max_fruitless_cuts=self._limits.max_fruitless_cuts,
                )
                if self._slots.live(held)  # without a delivery nothing may be published
            ]
        if not drained:
            generating = sum(1 for held in self._slots if _generates(held))
            logger.warning(
                "drain: %d rollouts still generate after %g s ([rollout] drain_deadline): "
                "%d are cut, %d go on under version %d",
                generating,
                self._limits.drain_deadline_s,
                len(chosen),
                generating - len(chosen),
                version,
            )
        for held in self._slots:
            held.resumed = False
        settled = await self._obeyed(
            self._runner.cut(chosen, CutReason.SYNC, version=version), "end what it generates"
        )
        cut_s = time.monotonic() - began
        if settled:
            waiting = [asyncio.ensure_future(event.wait()) for event in settled]
            patience_s = self._limits.confirm_patience_s + _CUT_MARGIN_S
            _, late = await asyncio.wait(waiting, timeout=patience_s)
            for task in late:
                task.cancel()
        return len(settled), cut_s

    async def _obeyed(self, doing: Awaitable[T], what: str) -> T:
        """What the engine is told to do, within the time that it has for it.

        Raises:
            EngineFailed: It did not do it.
        """
        limit_s = self._limits.stall_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await doing
        except TimeoutError as error:
            self._runner.engine_hangs = True
            raise EngineFailed(
                f"the engine hangs: told to {what}, it did not within {limit_s:g} s",
                hint="all is handed over as far as it came; [rollout] stall_timeout sets the time",
            ) from error

    async def _load(self, weights: PreparedWeights, reread: Reread) -> bool:
        try:
            await self._obeyed(self._engine.load_weights(weights), f"load {weights.version}")
        except WeightsRefused as error:
            logger.warning(
                "the engine refused version %d; reading it once more: %s", weights.version, error
            )
            try:
                weights = await reread()
                await self._obeyed(self._engine.load_weights(weights), f"load {weights.version}")
            except EngineFailed:
                raise
            except (WarrenError, OSError) as second:
                self._counters.weights_refused += 1
                logger.error(
                    "version %d is refused; version %d serves on: %s",
                    weights.version,
                    self.version,
                    second,
                )
                return False
        self._measure(weights)
        return True

    def _measure(self, weights: PreparedWeights) -> None:
        self._served = self._engine.serving()
        expected = (weights.version, weights.fingerprint)
        if (self._served.version, self._served.fingerprint) != expected:
            raise EngineFailed(
                f"the engine serves version {self._served.version} with fingerprint "
                f"{self._served.fingerprint}, loaded was version {weights.version} with "
                f"{weights.fingerprint}",
                hint="tokens would be booked under a wrong version, so this worker leaves",
            )
        self._runner.served_version = self._served.version

    @staticmethod
    async def _until(reached: Callable[[], bool], timeout_s: float) -> bool:
        """Look every few milliseconds, for a bounded time."""
        deadline = time.monotonic() + timeout_s
        while not reached():
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(_GLANCE_S)
        return True


def _generates(held: Held) -> bool:
    state = held.interruptible
    return state is not None and state.request_id is not None
