"""Everything of one trainer incarnation, put together."""

import asyncio
import logging
from typing import Self

from consumers.trainer.arriving.arrivals import Arrivals
from consumers.trainer.arriving.chronicle import Chronicle
from consumers.trainer.arriving.shelf import Shelf
from consumers.trainer.arriving.tally import Tally
from consumers.trainer.begin import new_run_id
from consumers.trainer.books.balance import Rules
from consumers.trainer.books.evaluation import Evaluations
from consumers.trainer.books.ledger import Ledger
from consumers.trainer.collect import Collector
from consumers.trainer.evaluating import Evaluator
from consumers.trainer.learn.learner import Learner
from consumers.trainer.loop import Loop
from consumers.trainer.publish import Publisher
from consumers.trainer.recovery import Recovered, recover
from consumers.trainer.report import closing_line
from consumers.trainer.saving import Saver
from consumers.trainer.steering.announce import Announcer
from consumers.trainer.steering.clock import PausableClock
from consumers.trainer.steering.credits import Credits
from consumers.trainer.steering.fence import Fence
from consumers.trainer.steering.fleet import Fleet
from consumers.trainer.steering.refusals import Refusals
from consumers.trainer.steering.reissue import Reissuer
from consumers.trainer.steering.wishes import Wishes
from consumers.trainer.telling.vitals import Vitals
from infra.observe.tracking.recorder import Recorder
from infra.roles.context import RoleContext
from infra.roles.settings import as_json_tree
from infra.runs.code_version import code_version
from infra.runs.failpoints import FailPoint, reach
from infra.runs.incarnation import Incarnations
from infra.runs.journal import Journal
from infra.runs.journal_reader import JournalReader
from infra.runs.metrics import newest_lines
from infra.weights.store import WeightStore
from schemas.journal import Opened

logger = logging.getLogger(__name__)


class Session:
    """The parts of a running trainer. Made by `open`."""

    def __init__(
        self,
        ctx: RoleContext,
        learner: Learner,
        chronicle: Chronicle,
        recovered: Recovered | None,
        *,
        run_id: str,
    ) -> None:
        config, clock = ctx.config, PausableClock()
        metrics = Recorder.open(config, ctx.folder, run_id=run_id, exporter=ctx.exporter)
        tally = recovered.tally if recovered else Tally()
        self._ctx = ctx
        self._chronicle = chronicle
        self._recovered = recovered
        self._metrics = metrics
        self._fleet = Fleet(ctx)
        path = ctx.folder.wishes
        wishes = Wishes.read(path) if recovered else Wishes(path)
        self._announcer = Announcer(ctx, chronicle, clock, wishes, run_id=run_id)
        self._credits = Credits(ctx, chronicle, clock, run_id=run_id)
        self._arrivals = Arrivals(
            ctx,
            chronicle,
            tally,
            run_id=run_id,
            vocab_size=learner.policy.vocab_size,
            credits=self._credits,
        )
        refusals = Refusals(self._fleet, clock)
        self._evaluator = Evaluator(ctx, chronicle, self._credits, clock, metrics, refusals)
        self._reissuer = Reissuer(ctx, chronicle, self._credits, clock, self._fleet)
        store = WeightStore.at(ctx.folder.weights(config))
        self._publisher = Publisher(
            ctx, chronicle, store, run_id=run_id, refused=self._fleet.newest_refused
        )
        collector = Collector(ctx, chronicle, clock, self._fleet, refusals)
        self._vitals = Vitals(
            ctx,
            chronicle,
            collector,
            self._publisher,
            self._fleet,
            clock,
            replays=lambda: self._arrivals.replays_ignored,
        )
        self._loop = Loop(
            ctx,
            chronicle,
            learner,
            collector=collector,
            credits=self._credits,
            publisher=self._publisher,
            evaluator=self._evaluator,
            refusals=refusals,
            saver=Saver(ctx, chronicle, learner, tally, run_id=run_id),
            metrics=metrics,
            tally=tally,
            on_line=self._vitals.stepped,
        )

    @classmethod
    async def open(
        cls, ctx: RoleContext, learner: Learner, *, goes_on: bool, skip_step: int | None = None
    ) -> Self:
        """Claim an incarnation, bring the learner up to the journal, begin a segment of our own.

        Raises:
            JournalCorrupt: The history cannot be read.
            StoppedWhileResuming: Told to stop meanwhile.
            ConfigError: `skip_step` was not decided yet.
        """
        fence = Fence(Incarnations(ctx.folder.incarnations))
        reader = JournalReader(ctx.folder.journal)
        shelf = Shelf(reader)
        recovered = None
        if goes_on:
            recovered = await recover(ctx, learner, reader, shelf, skip_step=skip_step)
        run_id = recovered.run_id if recovered else new_run_id()
        ctx.set_run_id(run_id)
        opened = Opened(
            run_id=run_id,
            incarnation=fence.incarnation,
            step=learner.step_done,
            previous_segment=recovered.end.segment if recovered else "",
            previous_bytes=recovered.end.offset if recovered else 0,
            config=dict(as_json_tree(ctx.config)),
            code=str(code_version()),
        )
        fence.check()
        chronicle = Chronicle(
            journal=Journal(ctx.folder.journal, opened),
            ledger=recovered.ledger if recovered else Ledger(Rules.of(ctx.config)),
            evaluations=recovered.evaluations if recovered else Evaluations(),
            fence=fence,
            shelf=shelf,
            max_fruitless=ctx.config.algorithm.max_fruitless,
        )
        await chronicle.commit()
        logger.info("run %s, trainer incarnation %d", run_id, fence.incarnation)
        return cls(ctx, learner, chronicle, recovered, run_id=run_id)

    async def run(self) -> None:
        """Train to the end, beside the helpers; say farewell if the run is over."""
        try:
            await self._run()
        finally:
            async with self._ctx.waits("the trackers to take what is left"):
                await asyncio.to_thread(self._metrics.close)

    async def _run(self) -> None:
        ledger = self._chronicle.ledger
        ledger.books().check("at the start")
        self._ctx.heartbeat(self._vitals.describe)
        self._ctx.settling(self._loop.stands)
        self._arrivals.newest_published = await self._publisher.rebroadcast()
        async with asyncio.TaskGroup() as tasks:
            helpers = [
                tasks.create_task(self._announcer.run()),
                tasks.create_task(self._wake_on_stop()),
            ]
            listening = tasks.create_task(self._fleet.run())
            if self._recovered is not None:
                await self._pick_up(self._recovered)
            helpers += [
                tasks.create_task(self._arrivals.run()),
                tasks.create_task(self._credits.run()),
                tasks.create_task(self._evaluator.run()),
                tasks.create_task(self._reissuer.run()),
            ]
            done = await self._loop.run()
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            await self._conclude(done)
            listening.cancel()

    def close(self) -> None:
        """Close the journal."""
        self._chronicle.journal.close()

    async def _pick_up(self, recovered: Recovered) -> None:
        """Finish what the predecessor had begun."""
        if recovered.unfinished is not None:
            self._loop.finish_unfinished(recovered.unfinished)
        if recovered.skipped is not None:
            self._loop.skip(recovered.skipped)
        self._chronicle.close_due()
        await self._chronicle.commit()
        written = newest_lines(self._ctx.folder.metrics, "step", "step")
        for step in sorted(recovered.lines.keys() - written.keys()):
            self._metrics.append("step", recovered.lines[step])
        count = await self._credits.publish_unconfirmed()
        if count:
            logger.info("published %d unconfirmed credits again", count)

    async def _conclude(self, done: bool) -> None:
        books = self._chronicle.ledger.books()
        books.check("at the end")
        await self._chronicle.commit()
        await asyncio.to_thread(self._metrics.append, "end", self._loop.end_line())
        reach(FailPoint.ENDED)
        if done or self._announcer.told_to_stop:
            await self._announcer.farewell(self._fleet)
        ledger = self._chronicle.ledger
        line = closing_line(books, step=ledger.step, num_steps=self._ctx.config.run.steps)
        logger.info("%s", line)

    async def _wake_on_stop(self) -> None:
        await self._ctx.stop.wait()
        self._chronicle.changed.ring()
