"""Held-out evaluations, asked for and waited for. None when the recipe has no held-out data."""

import asyncio
import logging
from typing import Any

from consumers.trainer.arriving.chronicle import Chronicle
from consumers.trainer.report import eval_line
from consumers.trainer.steering.clock import PausableClock
from consumers.trainer.steering.credits import Credits
from consumers.trainer.steering.refusals import Refusals
from infra.observe.tracking.recorder import Recorder
from infra.roles.context import RoleContext
from infra.runs.failpoints import FailPoint, reach
from schemas.journal import Evaluated

logger = logging.getLogger(__name__)

_GLANCE_S = 1.0


class Evaluator:
    """Opens evaluations when they are due; closes them when complete or out of time."""

    def __init__(
        self,
        ctx: RoleContext,
        chronicle: Chronicle,
        credits: Credits,
        clock: PausableClock,
        metrics: Recorder,
        refusals: Refusals,
    ) -> None:
        self._ctx = ctx
        self._chronicle = chronicle
        self._credits = credits
        self._clock = clock
        self._metrics = metrics
        self._refusals = refusals
        self._enabled = bool(ctx.config.data.eval)
        self._opened_at = clock.now()
        self._writing = False

    async def begin_if_due(self, *, last: bool = False) -> None:
        """Open an evaluation of the newest version if it is time for one."""
        ledger, evaluations = self._chronicle.ledger, self._chronicle.evaluations
        config = self._ctx.config.eval
        if not self._enabled or not evaluations.due(ledger.version, every=config.every, last=last):
            return
        self._opened_at = self._clock.now()
        await self._credits.evaluate(ledger.version, config.prompts * config.samples)

    async def run(self) -> None:
        """Close evaluations, until cancelled."""
        while True:
            evaluation = self._chronicle.evaluations.open
            if evaluation is None:
                await self._chronicle.changed.wait()
                continue
            late = self._clock.now() - self._opened_at >= self._ctx.config.deadlines.eval_deadline
            refused = self._refusals.due(evaluation.version)
            if (late or refused) and not evaluation.complete:
                logger.warning(
                    "the evaluation of v%d %s after %.0f s: members %s are missing",
                    evaluation.version,
                    "is out of time" if late else "ends, as no worker can serve it,",
                    self._clock.now() - self._opened_at,
                    list(evaluation.pending[:20]),
                )
            if evaluation.complete or late or refused:
                await self._close()
            else:
                await self._chronicle.changed.wait(_GLANCE_S)

    async def closed(self) -> None:
        """Wait until none is open and its line is written, or the trainer is told to stop."""
        if not self._unfinished():
            return
        async with self._ctx.waits(self._missing):
            while self._unfinished() and not self._ctx.stop.is_set():
                await self._chronicle.changed.wait(_GLANCE_S)

    async def _close(self) -> None:
        evaluation = self._chronicle.evaluations.open
        if evaluation is None:
            return
        result = evaluation.result()
        self._writing = True
        try:
            await self._write(result)
        finally:
            self._writing = False
            self._chronicle.changed.ring()

    async def _write(self, result: Evaluated) -> None:
        values: dict[str, Any] = {
            "version": result.version,
            "step": self._chronicle.ledger.step,
            "eval/reward": result.reward,
            "eval/num_scored": result.num_scored,
            "eval/num_asked": result.num_asked,
            "time/eval_s": self._clock.now() - self._opened_at,
            **result.metrics,
        }
        # The line first: a crash between the two writes it again, and readers take the last one.
        await asyncio.to_thread(self._metrics.append, "eval", values)
        reach(FailPoint.EVALUATION_WRITTEN)
        self._chronicle.note(result)
        await self._chronicle.commit()
        logger.info("%s", eval_line(values))

    def _unfinished(self) -> bool:
        return self._writing or self._chronicle.evaluations.open is not None

    def _missing(self) -> str:
        evaluation = self._chronicle.evaluations.open
        if evaluation is None:
            return "the evaluation to be written"
        done = len(evaluation.rewards) + len(evaluation.failed)
        return (
            f"the evaluation of v{evaluation.version}: {done}/{evaluation.num_asked} members back"
        )
