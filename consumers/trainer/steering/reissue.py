"""Lost members are asked for again, of groups and of evaluations.

    every few seconds: depth of every work queue, heartbeats --> silence --> credits

Time during which the broker does not answer counts for nobody: who is silent then is not lost.
"""

import asyncio
import logging
import time

from consumers.trainer.arriving.chronicle import Chronicle
from consumers.trainer.books.silence import Asked, Silence
from consumers.trainer.steering.clock import PausableClock
from consumers.trainer.steering.credits import Credits
from consumers.trainer.steering.fleet import Fleet
from infra.amqp.errors import QueueMissing
from infra.amqp.topology import WORK_QUEUES
from infra.roles.context import RoleContext

logger = logging.getLogger(__name__)

_PERIOD_S = 5.0


class Reissuer:
    """Looks every few seconds."""

    def __init__(
        self,
        ctx: RoleContext,
        chronicle: Chronicle,
        credits: Credits,
        clock: PausableClock,
        fleet: Fleet,
    ) -> None:
        self._ctx = ctx
        self._chronicle = chronicle
        self._credits = credits
        self._clock = clock
        self._fleet = fleet
        self._silence = Silence()
        self._away_s = 0.0

    async def run(self) -> None:
        """Ask again for what is lost, until cancelled."""
        grace_s = self._ctx.config.deadlines.reissue_grace
        while True:
            await asyncio.sleep(min(_PERIOD_S, grace_s / 4))
            self._clock.now()  # a clock at which nobody looks takes the time for a freeze
            if not self._clock.paused and self._asked():
                await self._look()

    def _asked(self) -> list[Asked]:
        groups, evaluation = self._chronicle.ledger.groups, self._chronicle.evaluations.open
        asked = [Asked.of_group(group) for group in groups.values()]
        if evaluation is not None:
            asked.append(Asked.of_evaluation(evaluation))
        return asked

    async def _look(self) -> None:
        deadlines, started = self._ctx.config.deadlines, time.monotonic()
        empty = await self._queues_empty()
        waited_s = time.monotonic() - started
        if waited_s > _PERIOD_S:
            self._away_s += waited_s
        now, asked = self._clock.now() - self._away_s, self._asked()
        self._silence.observe(asked, held=self._fleet.held(), empty=empty, now=now)
        lost = self._silence.missing(
            asked, now=now, grace_s=deadlines.reissue_grace, after_s=deadlines.reissue_after
        )
        for one, missing in lost:
            still = self._pending(one)  # what comes while others are asked for is not lost
            if indexes := tuple(index for index in missing if index in still):
                logger.warning("%s are lost, asking again", ", ".join(map(one.name, indexes)))
                self._silence.asked(one, indexes, now)
                await self._credits.reissue(one.purpose, one.number, indexes)

    def _pending(self, then: Asked) -> tuple[int, ...]:
        for one in self._asked():
            if (one.purpose, one.number, one.attempt) == (then.purpose, then.number, then.attempt):
                return one.pending
        return ()

    async def _queues_empty(self) -> bool:
        for queue in WORK_QUEUES:
            try:
                ready, _ = await self._ctx.broker.depth(queue)
            except QueueMissing as error:
                logger.warning("%s: declaring the run's queues again", error)
                self._ctx.broker.rebuild_control()
                return False
            if ready:
                return False
        return True
