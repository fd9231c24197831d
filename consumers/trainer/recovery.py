"""Going on where a trainer left off: newest good checkpoint, then the journal behind it.

checkpoint --> records, in order --> Batch: train on the same members again
                                 --> Stepped: compare the weights' hash
                                 --> everything else: into the ledger
"""

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Any

from consumers.trainer.arriving.screening import trajectory_of
from consumers.trainer.arriving.shelf import Shelf
from consumers.trainer.arriving.tally import Tally
from consumers.trainer.batch.stats import batch_stats
from consumers.trainer.books.balance import Rules
from consumers.trainer.books.evaluation import Evaluations
from consumers.trainer.books.ledger import Ledger
from consumers.trainer.learn.learner import Learner, StepResult
from consumers.trainer.saving import restore
from consumers.trainer.stepping import members_of, take_step
from infra.roles.context import RoleContext
from infra.runs.failpoints import FailPoint, reach
from infra.runs.journal_reader import Entry, JournalCorrupt, JournalReader, Position
from schemas.headers import Purpose
from schemas.journal import Arrived, Batch, GroupsClosed, Opened, Stepped

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
    lines: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Metrics of the steps that were taken again."""


async def recover(
    ctx: RoleContext, learner: Learner, reader: JournalReader, shelf: Shelf
) -> Recovered:
    """Rebuild ledger and weights from checkpoint and journal.

    Raises:
        JournalCorrupt: The journal is damaged, or does not reach back to the checkpoint.
        StepFailed: A step that is taken again fails twice.
    """
    rules = Rules.of(ctx.config)
    saved = await asyncio.to_thread(restore, ctx.folder.checkpoints, learner, rules)
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
    replay = _Replay(ctx, learner, shelf, recovered)
    for entry in reader.records(saved.position if saved else None):
        await replay.take(entry)
    if not recovered.run_id:
        raise JournalCorrupt(f"{ctx.folder.journal} does not say which run it is of")
    reach(FailPoint.RECOVERED)
    ledger = recovered.ledger
    logger.info(
        "resumed run %s at step %d, v%d: %d groups open, %d steps taken again",
        recovered.run_id,
        ledger.step,
        ledger.version,
        len(ledger.groups),
        len(recovered.lines),
    )
    return recovered


class _Replay:
    def __init__(
        self, ctx: RoleContext, learner: Learner, shelf: Shelf, recovered: Recovered
    ) -> None:
        self._ctx = ctx
        self._learner = learner
        self._shelf = shelf
        self._to = recovered

    async def take(self, entry: Entry) -> None:
        """Apply one record; a batch is trained on first."""
        record, known = entry.record, self._to
        if isinstance(record, Opened):
            if known.run_id and record.run_id != known.run_id:
                raise JournalCorrupt(f"the journal is of runs {known.run_id} and {record.run_id}")
            known.run_id = record.run_id
        if isinstance(record, Batch):
            await self._train(record)
        if isinstance(record, Stepped):
            self._compare(record)
        if isinstance(record, GroupsClosed):
            for closed in record.closed:
                if closed.group in known.ledger.groups:
                    self._shelf.forget(known.ledger.groups[closed.group])
        known.ledger.apply(record, entry.position)
        known.evaluations.apply(record)
        if isinstance(record, Arrived) and record.reward is not None:
            self._shelve(record, entry)

    async def _train(self, record: Batch) -> None:
        ledger = self._to.ledger
        chosen = [ledger.groups[number] for number in record.groups if number in ledger.groups]
        groups = await asyncio.to_thread(self._shelf.groups, chosen)
        if members_of(groups) != record.members:
            raise JournalCorrupt(
                f"step {record.step} was trained on {len(record.members)} rollouts, the journal "
                f"before it holds {len(members_of(groups))} of them"
            )
        async with self._ctx.waits(f"step {record.step} to be taken again"):
            result = await asyncio.to_thread(
                take_step, self._learner, groups, step=record.step, version=record.version
            )
        reach(FailPoint.STEP_REPEATED)
        for group in chosen:
            self._shelf.forget(group)
        self._to.unfinished = result
        self._to.lines[record.step] = {
            "step": record.step,
            "version": record.version,
            "replayed": True,
            "groups/trained": len(record.groups),
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
