"""The trainer's one loop.

           +----------------------------------------------------------------------------+
           v                                                                            |
    collect: groups_per_step groups ready, oldest first; none may be left behind too old |
           |                                                                            |
    journal Batch -> step (in a thread) -> journal Stepped                              |
           |                                                                            |
    every steps_per_publish: no evaluation open? -> store -> journal Published -> sync  |
           |                                                                            |
    checkpoint, evaluation if due -> release the step's credits ------------------------+

Beside it: arrivals (journal, acknowledge), credits, evaluations closing, RunState, heartbeats.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from consumers.trainer.arriving.chronicle import Chronicle
from consumers.trainer.arriving.tally import Tally
from consumers.trainer.batch.groups import Group
from consumers.trainer.batch.stats import batch_stats
from consumers.trainer.books.ends import End
from consumers.trainer.books.group import OpenGroup
from consumers.trainer.collect import Collector
from consumers.trainer.evaluating import Evaluator
from consumers.trainer.learn.learner import Learner, StepResult
from consumers.trainer.publish import Publisher
from consumers.trainer.report import step_line
from consumers.trainer.saving import Saver
from consumers.trainer.steering.credits import Credits
from consumers.trainer.steering.refusals import Refusals
from consumers.trainer.stepping import StepMemory, decided, stepped, stepped_body
from infra.observe.tracking.recorder import Recorder
from infra.roles.context import RoleContext, Standing
from infra.runs.failpoints import FailPoint, reach
from schemas.control import Wanted
from schemas.journal import Batch, Skipped

logger = logging.getLogger(__name__)


class Loop:
    """Collect, step, publish, until the steps are done or the trainer is told to stop."""

    def __init__(
        self,
        ctx: RoleContext,
        chronicle: Chronicle,
        learner: Learner,
        *,
        collector: Collector,
        credits: Credits,
        publisher: Publisher,
        evaluator: Evaluator,
        refusals: Refusals,
        saver: Saver,
        metrics: Recorder,
        tally: Tally,
        on_line: Callable[[Mapping[str, Any]], None] = lambda _line: None,
    ) -> None:
        self._ctx = ctx
        self._chronicle = chronicle
        self._learner = learner
        self._collector = collector
        self._credits = credits
        self._publisher = publisher
        self._evaluator = evaluator
        self._refusals = refusals
        self._saver = saver
        self._metrics = metrics
        self._tally = tally
        self._on_line = on_line
        self._memory = StepMemory(ctx.folder.root)
        self._counts = dict(chronicle.ledger.ends.counts)
        self._members = chronicle.ledger.totals.counts()
        self._reward: float | None = None
        self._line: dict[str, Any] | None = None
        self._line_at = time.monotonic()
        self._doing = ""

    def stands(self, wanted: Wanted) -> Standing:
        """Whether the trainer takes no further step, when the run is not to go on."""
        ledger = self._chronicle.ledger
        if self._doing and wanted is not Wanted.RUNNING:
            return Standing(False, f"ends {self._doing} first")
        return Standing(True, f"at step {ledger.step}, v{ledger.version}")

    async def run(self) -> bool:
        """Run; True when all steps are done and evaluated, False when told to stop before."""
        ledger, num_steps = self._chronicle.ledger, self._ctx.config.run.steps
        while True:
            await self._publish_if_due()
            await self._write_line()
            if self._ctx.stop.is_set() or ledger.step >= num_steps:
                break
            await self._evaluator.begin_if_due()
            self._credits.release()
            if ledger.step and ledger.step % self._ctx.config.checkpoint.every == 0:
                await self._save()
            batch = await self._collector.collect()
            if batch is not None:
                with self._at_work(f"step {ledger.step + 1}"):
                    await self._train(batch)
        done = ledger.step >= num_steps
        if ledger.step:
            await self._save()
        if done and not self._ctx.stop.is_set():
            await self._evaluate_last()
        return done

    def skip(self, batch: Batch) -> None:
        """Give up a decided step that cannot be taken: its groups are dead after all."""
        reason = self._memory.reason(batch.step)
        self._chronicle.note(Skipped(step=batch.step, groups=batch.groups, reason=reason))
        self._memory.forget()
        logger.warning("step %d is skipped: groups %s are dead", batch.step, list(batch.groups))

    def finish_unfinished(self, result: StepResult) -> None:
        """Journal a step that recovery took because its predecessor could not."""
        self._chronicle.note(stepped(result), stepped_body(result))
        logger.info("step %d was decided but not done: it is done now", result.step)

    def end_line(self) -> dict[str, Any]:
        """The last line of the metrics: the books, and totals."""
        books = asdict(self._chronicle.ledger.books())
        return {
            **{f"ledger/{name}": count for name, count in books.items()},
            "step": self._chronicle.ledger.step,
            "version": self._chronicle.ledger.version,
            **self._tally.to_json(),
            **{f"total/{name}": count for name, count in self._totals().items()},
        }

    def _totals(self) -> dict[str, int]:
        counts = self._chronicle.ledger.totals.counts()
        return {**counts, "late": counts["late"] + self._chronicle.evaluations.num_late}

    @contextlib.contextmanager
    def _at_work(self, what: str) -> Iterator[None]:
        self._doing = what
        try:
            yield
        finally:
            self._doing = ""

    async def _evaluate_last(self) -> None:
        await self._evaluate_newest()
        if self._refusals.due(self._chronicle.ledger.version):
            await self._publish_if_due()
            await self._evaluate_newest()

    async def _evaluate_newest(self) -> None:
        await self._evaluator.closed()
        await self._evaluator.begin_if_due(last=True)
        await self._evaluator.closed()

    async def _publish_if_due(self) -> None:
        ledger, config = self._chronicle.ledger, self._ctx.config
        due = ledger.step > ledger.published_step and (
            ledger.step % config.algorithm.steps_per_publish == 0 or ledger.step >= config.run.steps
        )
        refused = not due and self._refusals.due(ledger.version)
        if refused:
            logger.warning(
                "no rollout worker can serve v%d: its weights go out again under the next number",
                ledger.version,
            )
        if ledger.version >= 0 and not (due or refused or self._publisher.unsettled):
            return
        await self._evaluator.closed()
        if self._chronicle.evaluations.open is not None:
            return  # told to stop: whoever resumes publishes first
        with self._at_work("the publication of its weights"):
            metrics = await self._publisher.publish(
                self._learner, ledger.step, whole=refused or self._publisher.unsettled
            )
        if refused:
            self._refusals.published_again(ledger.version)
        self._chronicle.close_due()
        if self._line is not None:
            self._line |= {**metrics, "published": ledger.version}

    async def _save(self) -> None:
        if self._saver.saved_step != self._learner.step_done:
            with self._at_work("its checkpoint"):
                await self._saver.save()

    async def _train(self, batch: list[OpenGroup]) -> None:
        chronicle, ledger = self._chronicle, self._chronicle.ledger
        started = time.monotonic()
        step, version = ledger.step + 1, ledger.version
        groups = await asyncio.to_thread(chronicle.shelf.groups, batch)
        record = decided(groups, step=step, version=version)
        chronicle.note(record)
        chronicle.fruitless.reset()
        self._credits.hold(record.releases)
        ledger.books().check(f"at step {step}")
        await chronicle.commit()
        reach(FailPoint.BATCH_DECIDED)
        waited = started - self._line_at
        result = await asyncio.to_thread(
            self._memory.take, self._learner, groups, step=step, version=version
        )
        reach(FailPoint.STEP_TAKEN)
        self._chronicle.note(stepped(result), stepped_body(result))
        await chronicle.commit()
        reach(FailPoint.STEP_JOURNALED)
        self._line = {
            **self._describe(step, version, groups, result),
            "time/wait_s": waited,
            "time/train_s": time.monotonic() - started,
        }

    def _describe(
        self, step: int, version: int, groups: list[Group], result: StepResult
    ) -> dict[str, Any]:
        counts = self._chronicle.ledger.ends.counts
        closed = {f"groups/{end.value}": counts[end] - self._counts[end] for end in End}
        self._counts = dict(counts)
        before, self._members = self._members, self._chronicle.ledger.totals.counts()
        members = {f"members/{k}": count - before[k] for k, count in self._members.items()}
        return {
            "step": step,
            "version": version,
            **closed,
            "groups/open": len(self._chronicle.ledger.groups),
            **members,
            **self._tally.since_last(),
            **batch_stats(groups, version),
            **result.metrics,
        }

    async def _write_line(self) -> None:
        """The step's line, once its weights are out."""
        line, self._line = self._line, None
        if line is None:
            self._line_at = time.monotonic()
            return
        now = time.monotonic()
        line["time/step_s"] = now - self._line_at
        line["perf/tokens_per_s"] = line.get("batch/num_tokens", 0.0) / (now - self._line_at)
        self._line_at = now
        self._on_line(line)
        await asyncio.to_thread(self._metrics.append, "step", line)
        num_steps = self._ctx.config.run.steps
        logger.info("%s", step_line(line, num_steps=num_steps, before=self._reward))
        self._reward = line.get("arrived/reward", self._reward)
