"""`RunState`: the trainer's word on what the run should do, repeated for who missed it."""

import asyncio
import logging

from consumers.trainer.arriving.chronicle import Chronicle
from consumers.trainer.steering.clock import PausableClock
from infra.amqp.codec import encode
from infra.amqp.errors import PublishTimeout
from infra.amqp.message import Outgoing
from infra.roles.context import RoleContext
from schemas.control import Command, RunState, Wanted

logger = logging.getLogger(__name__)

PERIOD_S = 2.5
_FAREWELLS = 3
_FAREWELL_PERIOD_S = 0.2
_FAREWELL_PATIENCE_S = 10.0

_ANSWERS = {
    "pause": Wanted.PAUSED,
    "resume": Wanted.RUNNING,
    "drain": Wanted.DRAINING,
    "stop": Wanted.STOPPED,
}


class Announcer:
    """Sends `RunState` every few seconds and on every change; takes operators' commands."""

    def __init__(
        self, ctx: RoleContext, chronicle: Chronicle, clock: PausableClock, *, run_id: str
    ) -> None:
        self._ctx = ctx
        self._chronicle = chronicle
        self._clock = clock
        self._run_id = run_id
        self._number = 0
        self._said: RunState | None = None
        self.wanted = Wanted.RUNNING
        ctx.on_command(self._obey)

    @property
    def told_to_stop(self) -> bool:
        """Whether an operator ended the run, not only this process."""
        return self.wanted is Wanted.STOPPED

    async def run(self) -> None:
        """Announce until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._say()
            again_at = loop.time() + PERIOD_S
            while not self._news() and loop.time() < again_at:
                await self._chronicle.changed.wait(again_at - loop.time())

    async def farewell(self) -> None:
        """Say a few times that the run is over, so that every role leaves."""
        self.wanted = Wanted.STOPPED
        for _ in range(_FAREWELLS):
            try:
                await self._say(timeout_s=_FAREWELL_PATIENCE_S)
            except PublishTimeout:
                logger.warning("the broker did not take the word that the run is over")
                return
            await asyncio.sleep(_FAREWELL_PERIOD_S)

    def _obey(self, command: Command) -> None:
        self.wanted = _ANSWERS[command.verb]
        logger.info("%s%s", command.verb, f" (by {command.by})" if command.by else "")
        if self.wanted in (Wanted.PAUSED, Wanted.DRAINING):
            self._clock.pause()
        else:
            self._clock.resume()
        self._chronicle.changed.ring()

    def _state(self) -> RunState:
        ledger, evaluation = self._chronicle.ledger, self._chronicle.evaluations.open
        return RunState(
            run_id=self._run_id,
            number=self._number,
            incarnation=self._chronicle.fence.incarnation,
            wanted=self.wanted,
            version=ledger.version,
            step=ledger.step,
            num_steps=self._ctx.config.run.steps,
            evaluating=-1 if evaluation is None else evaluation.version,
            closed_early=ledger.closed_early,
        )

    def _news(self) -> bool:
        return self._state() != self._said

    async def _say(self, *, timeout_s: float | None = None) -> None:
        if self._news():
            self._number += 1
        state = self._said = self._state()
        envelope, body = encode(
            state,
            app_id=self._ctx.app_id,
            correlation_id=self._run_id,
            headers={"run_id": self._run_id},
        )
        deadline_s = self._ctx.config.deadlines.stall
        async with self._ctx.waits("the broker to take the run's state", deadline_s=deadline_s):
            await self._ctx.broker.publish(
                Outgoing(exchange="sync", routing_key="", envelope=envelope, body=body),
                timeout_s=timeout_s,
            )
