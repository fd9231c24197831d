"""Going on where a trainer left off: newest good checkpoint, then the journal behind it.

checkpoint --> records, in order --> Batch: gather the same members
                                 --> Stepped: train on them again, compare the weights' hash
                                 --> Skipped: do not
                                 --> everything else: into the ledger
           --> a batch is left: train on it, or skip it if told so

All of it in a thread: the event loop goes on with heartbeats.
"""

import asyncio
import logging
import time
from dataclasses import dataclass, field
from typing import Any

from consumers.trainer.arriving.shelf import Shelf
from consumers.trainer.arriving.tally import Tally
from consumers.trainer.batch.groups import Group
from consumers.trainer.batch.stats import batch_stats
from consumers.trainer.books.balance import Rules
from consumers.trainer.books.evaluation import Evaluations
from consumers.trainer.books.ledger import RULES_CHANGED, Ledger
from consumers.trainer.learn.learner import Learner, StepResult
from consumers.trainer.saving import restore
from consumers.trainer.stepping import StepMemory, members_of
from infra.roles.context import RoleContext
from infra.roles.errors import ConfigError
from infra.runs.failpoints import FailPoint, reach
from infra.runs.journal_reader import Entry, JournalCorrupt, JournalReader, Position
from infra.runs.recorded import trajectory_of
from schemas.headers import Purpose
from schemas.journal import Arrived, Batch, GroupsClosed, Opened, Skipped, Stepped

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
    progress = _Progress()
    async with ctx.waits(progress.describe):
        recovered = await asyncio.to_thread(
            _recover, ctx, learner, reader, shelf, skip_step, progress
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
    recovered = Recovered(
        run_id=saved.run_id if saved else "",
        ledger=saved.ledger if saved else Ledger(rules),
        evaluations=saved.evaluations if saved else Evaluations(),
        tally=saved.tally if saved else Tally(),
        end=end,
    )
    _say_torn(ctx, end)
    replay = _Replay(ctx, learner, shelf, recovered, progress)
    for entry in reader.records(saved.position if saved else None):
        replay.take(entry)
        if ctx.stop.is_set():
            raise StoppedWhileResuming
    replay.finish(skip_step)
    if not recovered.run_id:
        raise JournalCorrupt(f"{ctx.folder.journal} does not say which run it is of")
    return recovered


def _say_torn(ctx: RoleContext, end: Position) -> None:
    torn = (ctx.folder.journal / end.segment).stat().st_size - end.offset
    if torn:
        logger.info("cut %d bytes behind the last whole record of %s", torn, end.segment)


class _Replay:
    def __init__(
        self,
        ctx: RoleContext,
        learner: Learner,
        shelf: Shelf,
        recovered: Recovered,
        progress: _Progress,
    ) -> None:
        self._learner = learner
        self._shelf = shelf
        self._to = recovered
        self._progress = progress
        self._memory = StepMemory(ctx.folder.root)
        self._batch: tuple[Batch, list[Group]] | None = None

    def take(self, entry: Entry) -> None:
        """Apply one record; a step is taken again where its predecessor had taken it."""
        record, known = entry.record, self._to
        match record:
            case Opened():
                if known.run_id and record.run_id != known.run_id:
                    raise JournalCorrupt(
                        f"the journal is of runs {known.run_id} and {record.run_id}"
                    )
                known.run_id = record.run_id
            case Batch():
                self._gather(record)
            case Stepped():
                self._train(done_before=True)
                self._compare(record)
            case Skipped():
                self._skip(record.step)
            case GroupsClosed():
                for closed in record.closed:
                    if closed.group in known.ledger.groups:
                        self._shelf.forget(known.ledger.groups[closed.group])
            case _:
                pass
        known.ledger.apply(record, entry.position)
        known.evaluations.apply(record)
        if isinstance(record, Arrived) and record.reward is not None:
            self._shelve(record, entry)

    def finish(self, skip_step: int | None) -> None:
        """The journal is at its end: a batch may be left whose step was not done.

        Raises:
            ConfigError: The one to be skipped was not decided yet.
        """
        waiting = None if self._batch is None else self._batch[0]
        if skip_step is None:
            self._train()
        elif waiting is not None and waiting.step == skip_step:
            self._skip(skip_step)
            self._to.skipped = waiting
        elif skip_step <= self._to.ledger.step:
            logger.warning("step %d was taken or given up before: nothing to skip", skip_step)
            self._train()
        else:
            raise ConfigError(
                f"--skip-step {skip_step}: only a step that was decided and not taken can be "
                f"skipped, and the newest one is step {self._to.ledger.step}",
                hint="leave --skip-step out",
            )

    def _gather(self, record: Batch) -> None:
        ledger = self._to.ledger
        chosen = [ledger.groups[number] for number in record.groups if number in ledger.groups]
        groups = self._shelf.groups(chosen)
        if members_of(groups) != record.members:
            raise JournalCorrupt(
                f"step {record.step} was trained on {len(record.members)} rollouts, the journal "
                f"before it holds {len(members_of(groups))} of them",
                hint=RULES_CHANGED,
            )
        for group in chosen:
            self._shelf.forget(group)
        self._batch = record, groups

    def _skip(self, step: int) -> None:
        self._batch, self._learner.step_done = None, step

    def _train(self, *, done_before: bool = False) -> None:
        if self._batch is None:
            return
        (record, groups), self._batch = self._batch, None
        self._progress.what = f"step {record.step} to be taken again"
        result = self._memory.take(
            self._learner,
            groups,
            step=record.step,
            version=record.version,
            done_before=done_before,
        )
        self._progress.what = f"the journal behind step {record.step} to be read"
        reach(FailPoint.STEP_REPEATED)
        self._to.unfinished = result
        self._to.lines[record.step] = {
            "step": record.step,
            "version": record.version,
            "replayed": True,
            "groups/trained": len(record.groups),
            **self._to.tally.since_last(),
            **batch_stats(groups, record.version),
            **result.metrics,
        }

    def _compare(self, record: Stepped) -> None:
        result, self._to.unfinished = self._to.unfinished, None
        if result is None or result.step != record.step:
            raise JournalCorrupt(f"step {record.step} is in the journal without its batch")
        if result.weights_sha256 == record.weights_sha256:
            logger.info("step %d taken again: the same weights, bit for bit", record.step)
            return
        logger.warning(
            "step %d taken again gives OTHER weights: loss %.8g (was %.8g), grad norm %.8g "
            "(was %.8g); another machine, thread count or torch?",
            record.step,
            result.loss,
            record.loss,
            result.grad_norm,
            record.grad_norm,
        )

    def _shelve(self, record: Arrived, entry: Entry) -> None:
        trajectory = trajectory_of(record, entry.body)
        self._to.tally.add(trajectory)
        if record.purpose is Purpose.TRAIN and record.group in self._to.ledger.groups:
            self._shelf.keep(entry.position, trajectory)
