"""Handing over: everything that is held goes back to the queues, as far as it has come.

take nothing more
  |-> not admitted yet: back as it came
  |-> running: cut (reason leave) -> snapshot, confirmed, acknowledged
  |-> still in an unrepeatable tool when the grace time ends: back, to start anew
  |-> in an engine that does not let it go: snapshot of what came out of it
"""

import asyncio
import logging

from consumers.rollout.agents.state import CutReason
from consumers.rollout.delivery.outbox import Outbox
from consumers.rollout.delivery.snapshots import uncounted_headers
from consumers.rollout.runner import Runner
from consumers.rollout.slots import Held, Slots
from consumers.rollout.updates.gate import Holds
from infra.roles.errors import LeftWithoutHandover

logger = logging.getLogger(__name__)

_GLANCE_S = 0.05
_CUT_SHARE = 0.8
"""Of the grace time: for cuts to take effect. The rest is for what could not be cut."""


class Departure:
    """Hands over what this worker holds.

    Args:
        slots: What is held.
        runner: Cuts.
        outbox: The way out.
        holds: For the intake.
        grace_s: Time for all of it.
    """

    def __init__(
        self, *, slots: Slots, runner: Runner, outbox: Outbox, holds: Holds, grace_s: float
    ) -> None:
        self._slots = slots
        self._runner = runner
        self._outbox = outbox
        self._holds = holds
        self._grace_s = grace_s

    async def hand_over(self, *, final: bool) -> int:
        """Hand over; returns how many rollouts remain unconfirmed.

        Args:
            final: What cannot be cut in time starts again elsewhere. Otherwise it goes on here.
        """
        held_before = len(self._slots)
        began = asyncio.get_running_loop().time()
        returning = asyncio.ensure_future(self.give_back_waiting())
        await asyncio.sleep(0)  # what was taken in this very step has a state from now on
        self._runner.end_cuts()  # what they were to cut is cut now
        lost = [held for held in self._slots if self._runner.engine_hangs and _in_engine(held)]
        begun = {returning, *(asyncio.ensure_future(self._runner.salvage(one)) for one in lost)}
        chosen = [held for held in self._slots if held not in lost]
        begun.add(asyncio.ensure_future(self._cut(chosen)))
        await self._ended(begun | self._runner.tasks, self._grace_s * _CUT_SHARE)
        tasks = begun | self._runner.tasks
        if final and self._outbox.available:
            stuck = [held for held in self._slots if self._in_loop(held)]
            tasks |= {asyncio.ensure_future(self._restart(held)) for held in stuck}
        await self._ended(tasks, self._grace_s * (1 - _CUT_SHARE))
        for task in begun:
            task.cancel()
        if final:
            await self._reconnected(began + self._grace_s)
        left = sum(1 for held in self._slots if self._unconfirmed(held))
        logger.info(
            "handed over %d rollouts · %d not · %.2f s",
            held_before - left,
            left,
            asyncio.get_running_loop().time() - began,
        )
        return left

    async def leave(self) -> None:
        """Hand over for good.

        Raises:
            LeftWithoutHandover: The broker did not take everything in time.
        """
        self._holds.put("leaving", "leaving")
        self._runner.leaving = True
        left = await self.hand_over(final=True)
        if left:
            why = "has an alarm" if self._outbox.blocked else "is away or slow"
            raise LeftWithoutHandover(
                f"{left} rollouts were not handed over: the broker {why}",
                hint="nothing is lost: the broker gives their messages to other workers, who "
                "generate again what was gained since the last snapshot",
            )

    async def give_back_waiting(self) -> None:
        """Return what was not admitted yet, so that others can run it. It is not counted."""
        waiting = [held for held in self._slots if held.waiting and not held.publishing]
        await asyncio.gather(*(self._give_back(held) for held in waiting))

    # -- inside

    async def _give_back(self, held: Held) -> None:
        held.publishing = True  # so that nobody starts it or gives it back, too
        try:
            await self._outbox.give_back(held, uncounted_headers(held))
        finally:
            held.publishing = False
        self._runner.abandon(held)

    async def _cut(self, held: list[Held]) -> None:
        await self._runner.cut(held, CutReason.LEAVE)

    async def _restart(self, held: Held) -> None:
        if not self._in_loop(held):  # it was let go in this very moment
            return
        if _in_engine(held):
            logger.warning("%s is not let go by the engine: it goes as it is", held.rollout_id)
            await self._runner.salvage(held)
            return
        held.returns = held.returns.given_back(progressed=False, excused=False)
        if held.runner is not None:
            held.runner.cancel()
        logger.warning("%s could not be cut: it starts again elsewhere", held.rollout_id)
        await self._give_back(held)

    @staticmethod
    def _in_loop(held: Held) -> bool:
        """Whether it still runs, rather than waiting for a confirm."""
        return held.runner is not None and not held.runner.done() and not held.publishing

    async def _reconnected(self, deadline: float) -> None:
        """Wait for a broker that is away: once it is back, what we held is with it again."""
        loop = asyncio.get_running_loop()
        while True:
            if not len(self._slots) or self._outbox.connected or loop.time() >= deadline:
                return
            await asyncio.sleep(_GLANCE_S)

    def _unconfirmed(self, held: Held) -> bool:
        return bool(self._slots.live(held)) or not self._outbox.connected

    @staticmethod
    async def _ended(tasks: set["asyncio.Task[None]"], timeout_s: float) -> None:
        pending = {task for task in tasks if not task.done()}
        if not pending:
            return
        ended, _ = await asyncio.wait(pending, timeout=timeout_s)
        for task in ended:
            if not task.cancelled() and (error := task.exception()) is not None:
                logger.error("handing over: %s", error)


def _in_engine(held: Held) -> bool:
    return held.state is not None and held.state.request_id is not None and not held.publishing
