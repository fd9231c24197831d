"""`RunState`: the trainer's word on what the run should do, repeated for who missed it."""

import asyncio
import logging

from consumers.trainer.arriving.chronicle import Chronicle
from consumers.trainer.steering.clock import PausableClock
from consumers.trainer.steering.fleet import Fleet
from consumers.trainer.steering.wishes import Wishes
from infra.amqp.codec import encode
from infra.amqp.errors import PublishTimeout
from infra.amqp.message import Outgoing
from infra.roles.context import RoleContext
from schemas.control import Command, RunState, Wanted

logger = logging.getLogger(__name__)

PERIOD_S = 2.5
FAREWELL_S = 90.0
"""How long the last word is repeated at most; every role has handed over or is lost by then."""
_FAREWELL_PERIOD_S = 0.2
_FAREWELL_PATIENCE_S = 10.0


class Announcer:
    """Sends `RunState` every few seconds and on every change; takes operators' commands.

    Args:
        wishes: What was wanted of this run before.
    """

    def __init__(
        self,
        ctx: RoleContext,
        chronicle: Chronicle,
        clock: PausableClock,
        wishes: Wishes,
        *,
        run_id: str,
    ) -> None:
        self._ctx = ctx
        self._chronicle = chronicle
        self._clock = clock
        self._run_id = run_id
        self._number = 0
        self._said: RunState | None = None
        self._wishes = wishes
        self._to_keep = False
        self._over = False
        if wishes.wanted is not Wanted.RUNNING:
            by = f" by {wishes.by}" if wishes.by else ""
            logger.warning(
                "the run is %s%s since before this trainer: 'run.py control resume' lets it go on",
                wishes.wanted,
                by,
            )
        self._set_clock()
        ctx.on_command(self._obey)

    @property
    def wanted(self) -> Wanted:
        """What the run is to be. A stop is told by the command itself, and by the farewell once
        all is saved: who is still handing over must not take the run for complete."""
        if self._over:
            return Wanted.STOPPED
        return Wanted.RUNNING if self.told_to_stop else self._wishes.wanted

    @property
    def told_to_stop(self) -> bool:
        """Whether an operator ended the run, not only this process."""
        return self._wishes.wanted is Wanted.STOPPED

    async def run(self) -> None:
        """Announce until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._say()
            again_at = loop.time() + PERIOD_S
            while not self._news() and loop.time() < again_at:
                await self._chronicle.changed.wait(again_at - loop.time())

    async def farewell(self, fleet: Fleet) -> None:
        """Say that the run is over until every role of it has left, or is not heard any more.

        One whose connection is cut just now would never learn it otherwise.
        """
        self._over = True
        began_at = asyncio.get_running_loop().time()
        async with self._ctx.waits(lambda: f"{_names(fleet.staying(began_at))} to leave"):
            while True:
                try:
                    await self._say(timeout_s=_FAREWELL_PATIENCE_S)
                except PublishTimeout:
                    logger.warning("the broker did not take the word that the run is over")
                await asyncio.sleep(_FAREWELL_PERIOD_S)
                staying = fleet.staying(began_at)
                if not staying:
                    return
                if asyncio.get_running_loop().time() - began_at >= FAREWELL_S:
                    logger.warning(
                        "the run is over, but %s did not leave within %.0f s: end them by hand",
                        _names(staying),
                        FAREWELL_S,
                    )
                    return

    def _obey(self, command: Command) -> None:
        if not self._wishes.obey(command):
            return
        self._to_keep = True
        logger.info("%s%s", command.verb, f" (by {command.by})" if command.by else "")
        self._set_clock()
        self._chronicle.changed.ring()

    def _set_clock(self) -> None:
        if self._wishes.wanted in (Wanted.PAUSED, Wanted.DRAINING):
            self._clock.pause()
        else:
            self._clock.resume()

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
        if self._to_keep:
            self._to_keep = False
            await asyncio.to_thread(self._wishes.keep)
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


def _names(staying: list[str]) -> str:
    shown = ", ".join(staying[:8])
    return f"{shown} and {len(staying) - 8} more" if len(staying) > 8 else shown or "nobody"
