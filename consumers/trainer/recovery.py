"""Going on where a trainer left off: newest good checkpoint, then the journal behind it.

checkpoint --> records, in order (`walk.py`); a step taken again: compare the weights' hash
           --> a batch is left: train on it, or skip it if told so

All of it in a thread: the event loop goes on with heartbeats.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from consumers.trainer.arriving.shelf import Shelf
from consumers.trainer.arriving.tally import Tally
from consumers.trainer.batch.groups import Group
from consumers.trainer.batch.stats import batch_stats
from consumers.trainer.books.balance import Rules
from consumers.trainer.books.evaluation import Evaluations
from consumers.trainer.books.ledger import Ledger
from consumers.trainer.learn.learner import Learner, StepResult
from consumers.trainer.saving import SavedState, restore
from consumers.trainer.stepping import StepMemory
from consumers.trainer.walk import Taken, Walk
from infra.roles.context import RoleContext
from infra.roles.errors import ConfigError
from infra.runs.failpoints import FailPoint, reach
from infra.runs.journal_reader import Entry, JournalCorrupt, JournalReader, Position
from schemas.journal import Batch, Stepped

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Recovered:
    """What the run folder knows, with the learner brought up to it."""

    run_id: str
    ledger: Ledger
    evaluations: Evaluations
    tally: Tally
    end: Position
    unfinished: StepResult | None = None
    """Of the last batch, when its step was decided but not journaled as done; it is done now."""
    skipped: Batch | None = None
    """The last batch, when its step is given up."""
    lines: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Metrics of the steps that were taken again."""


class StoppedWhileResuming(Exception):
    """The role was told to stop; nothing was written."""


async def recover(
    ctx: RoleContext,
    learner: Learner,
    reader: JournalReader,
    shelf: Shelf,
    *,
    skip_step: int | None = None,
) -> Recovered:
    """Rebuild ledger and weights from checkpoint and journal.

    Args:
        skip_step: Do not take this step, if it was decided and is not done.

    Raises:
        JournalCorrupt: The journal is damaged, or does not reach back to the checkpoint.
        StepFailed: A step that is taken again fails.
        StepFailedTwice: And failed before.
        ConfigError: `skip_step` was not decided yet.
        StoppedWhileResuming: `ctx.stop` was set meanwhile.
    """
    progress, loop = _Progress(), asyncio.get_running_loop()

    def know(run_id: str) -> None:
        loop.call_soon_threadsafe(ctx.set_run_id, run_id)

    async with ctx.waits(progress.describe):
        recovered = await asyncio.to_thread(
            _recover, ctx, learner, reader, shelf, skip_step, progress, know
        )
    reach(FailPoint.RECOVERED)
    ledger = recovered.ledger
    logger.info(
        "resumed run %s at step %d, v%d: %d groups open, %d steps taken again in %.1f s",
        recovered.run_id,
        ledger.step,
        ledger.version,
        len(ledger.groups),
        len(recovered.lines),
        time.monotonic() - progress.began_at,
    )
    return recovered


class _Progress:
    """Where the thread is, for the waiting line."""

    def __init__(self) -> None:
        self.began_at = time.monotonic()
        self.what = "the newest checkpoint to be loaded"

    def describe(self) -> str:
        return self.what


def _recover(
    ctx: RoleContext,
    learner: Learner,
    reader: JournalReader,
    shelf: Shelf,
    skip_step: int | None,
    progress: _Progress,
    know: Callable[[str], None],
) -> Recovered:
    rules = Rules.of(ctx.config)
    saved = restore(ctx.folder.checkpoints, learner, rules)
    progress.what = "the journal to be read"
    end = reader.end()
    if end is None:
        raise JournalCorrupt(f"{ctx.folder.journal} holds no readable record")
    if saved is None and not reader.begins_at_start():
        raise JournalCorrupt(
            f"{ctx.folder.journal} begins after the run's start and no checkpoint reaches it",
            hint="restore a checkpoint or the older segments",
        )
    _say_torn(ctx, end)
    state = saved or SavedState.at_start(rules)
    resuming = _Resuming(ctx, learner, shelf, state, progress)
    known = ""
    for entry in reader.records(state.position):
        if state.run_id != known:  # commands that are meant for the run are obeyed from now on
            known = state.run_id
            know(known)
        resuming.take(entry)
        if ctx.stop.is_set():
            raise StoppedWhileResuming
    recovered = resuming.finish(end, skip_step)
    if not recovered.run_id:
        raise JournalCorrupt(f"{ctx.folder.journal} does not say which run it is of")
    return recovered


def _say_torn(ctx: RoleContext, end: Position) -> None:
    torn = (ctx.folder.journal / end.segment).stat().st_size - end.offset
    if torn:
        logger.info("cut %d bytes behind the last whole record of %s", torn, end.segment)


class _Resuming:
    def __init__(
        self,
        ctx: RoleContext,
        learner: Learner,
        shelf: Shelf,
        state: SavedState,
        progress: _Progress,
    ) -> None:
        self._progress = progress
        self._memory = StepMemory(ctx.folder.root)
        self._walk = Walk(learner, shelf, state, self._train)
        self._lines: dict[int, dict[str, Any]] = {}

    def take(self, entry: Entry) -> None:
        """Apply one record; a step is taken again where its predecessor had taken it."""
        taken = self._walk.apply(entry)
        if taken is not None and taken.recorded is not None:
            self._note(taken)
            _compare(taken.result, taken.recorded)

    def finish(self, end: Position, skip_step: int | None) -> Recovered:
        """The journal is at its end: a batch may be left whose step was not done.

        Raises:
            ConfigError: The one to be skipped was not decided yet.
        """
        walk, state = self._walk, self._walk.state
        waiting = None if walk.waiting is None else walk.waiting[0]
        skipped, unfinished = None, None
        if skip_step is not None and waiting is not None and waiting.step == skip_step:
            walk.skip(skip_step)
            skipped = waiting
        elif skip_step is not None and skip_step > state.ledger.step:
            raise ConfigError(
                f"--skip-step {skip_step}: only a step that was decided and not taken can be "
                f"skipped, and the newest one is step {state.ledger.step}",
                hint="leave --skip-step out",
            )
        else:
            if skip_step is not None:
                logger.warning("step %d was taken or given up before: nothing to skip", skip_step)
            unfinished = walk.train()
            if unfinished is not None:
                self._note(unfinished)
        return Recovered(
            run_id=state.run_id,
            ledger=state.ledger,
            evaluations=state.evaluations,
            tally=state.tally,
            end=end,
            unfinished=None if unfinished is None else unfinished.result,
            skipped=skipped,
            lines=self._lines,
        )

    def _train(
        self,
        learner: Learner,
        groups: Sequence[Group],
        *,
        step: int,
        version: int,
        done_before: bool = False,
    ) -> StepResult:
        self._progress.what = f"step {step} to be taken again"
        result = self._memory.take(
            learner, groups, step=step, version=version, done_before=done_before
        )
        self._progress.what = f"the journal behind step {step} to be read"
        reach(FailPoint.STEP_REPEATED)
        return result

    def _note(self, taken: Taken) -> None:
        record = taken.batch
        self._lines[record.step] = {
            "step": record.step,
            "version": record.version,
            "replayed": True,
            "groups/trained": len(record.groups),
            **self._walk.state.tally.since_last(),
            **batch_stats(taken.groups, record.version),
            **taken.result.metrics,
        }


def _compare(result: StepResult, record: Stepped) -> None:
    if result.weights_sha256 == record.weights_sha256:
        logger.info("step %d taken again: the same weights, bit for bit", record.step)
        return
    logger.warning(
        "step %d taken again gives OTHER weights: loss %.8g (was %.8g), grad norm %.8g "
        "(was %.8g); another recipe, machine, thread count or torch?",
        record.step,
        result.loss,
        record.loss,
        result.grad_norm,
        record.grad_norm,
    )
