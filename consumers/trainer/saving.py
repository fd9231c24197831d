"""Checkpoints of everything: learner, ledger, evaluations, and where in the journal they stand."""

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from consumers.trainer.arriving.chronicle import Chronicle
from consumers.trainer.arriving.tally import Tally
from consumers.trainer.books.balance import Rules
from consumers.trainer.books.evaluation import Evaluations
from consumers.trainer.books.ledger import Ledger
from consumers.trainer.learn import checkpoints
from consumers.trainer.learn.durable_folders import step_folders
from consumers.trainer.learn.learner import Learner
from infra.roles.context import RoleContext
from infra.roles.errors import ConfigError, WarrenError
from infra.runs.failpoints import FailPoint, reach
from infra.runs.journal_reader import Position

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class SavedState:
    """What is known beside the learner's own: at a checkpoint, or at the run's start."""

    run_id: str
    position: Position | None
    """In the journal; None is its beginning."""
    ledger: Ledger
    evaluations: Evaluations
    tally: Tally

    @classmethod
    def at_start(cls, rules: Rules) -> "SavedState":
        """Before the first record."""
        return cls(
            run_id="",
            position=None,
            ledger=Ledger(rules),
            evaluations=Evaluations(),
            tally=Tally(),
        )


class Saver:
    """Saves checkpoints, and drops journal segments that none of the kept ones needs."""

    def __init__(
        self,
        ctx: RoleContext,
        chronicle: Chronicle,
        learner: Learner,
        tally: Tally,
        *,
        run_id: str,
    ) -> None:
        self._ctx = ctx
        self._chronicle = chronicle
        self._learner = learner
        self._tally = tally
        self._run_id = run_id
        self._needs: dict[int, str] = {}
        self.saved_step = -1

    async def save(self) -> None:
        """Save a checkpoint of the step that was just taken.

        Raises:
            Superseded: A newer trainer has begun.
            WarrenError: The disk refused.
        """
        step = self._learner.step_done
        folder, keep = self._ctx.folder.checkpoints, self._ctx.config.checkpoint.keep
        extra = self._extra()
        await self._chronicle.commit()  # no checkpoint may know more than the disk has
        reach(FailPoint.CHECKPOINT_BEGUN)
        try:
            async with self._ctx.waits(f"the checkpoint of step {step} to be written"):
                await asyncio.to_thread(checkpoints.save, folder, self._learner, extra, keep=keep)
        except OSError as error:
            raise WarrenError(
                f"cannot save the checkpoint of step {step} in {folder}: {error}",
                hint="free some space, then start the trainer with --resume: the journal has all",
            ) from error
        self.saved_step, self._needs[step] = step, extra["needs"]
        reach(FailPoint.CHECKPOINT_PRUNED)
        await self._chronicle.journal.rotate()
        reach(FailPoint.JOURNAL_ROTATED)
        await asyncio.to_thread(self._drop_segments)

    def _extra(self) -> dict[str, Any]:
        chronicle = self._chronicle
        return {
            "run_id": self._run_id,
            "incarnation": chronicle.fence.incarnation,
            "version": chronicle.ledger.version,
            "next_credit": chronicle.ledger.num_issued,
            "position": list(chronicle.journal.end),
            "needs": self._oldest_needed(),
            "ledger": chronicle.ledger.to_json(),
            "evaluations": chronicle.evaluations.to_json(),
            "tally": self._tally.to_json(),
        }

    def _oldest_needed(self) -> str:
        places = [
            member.where.segment
            for group in self._chronicle.ledger.groups.values()
            for member in group.members
            if member.where is not None
        ]
        return min([self._chronicle.journal.end.segment, *places])

    def _drop_segments(self) -> None:
        """Blocking. Keeps everything if a checkpoint does not say what it needs."""
        folder, needs = self._ctx.folder.checkpoints, dict[int, str]()
        for path in step_folders(folder):
            step = int(path.name.removeprefix("step_"))
            try:
                needs[step] = self._needs.get(step) or checkpoints.read_extra(path)["needs"]
            except (checkpoints.CheckpointUnusable, LookupError) as error:
                logger.warning("no journal segment is removed: %s: %s", path.name, error)
                return
        self._needs = needs
        if needs:
            keep_bytes = self._ctx.config.checkpoint.journal_bytes
            self._chronicle.journal.remove_before(min(needs.values()), keep_bytes=keep_bytes)


def restore(folder: Path, learner: Learner, rules: Rules) -> SavedState | None:
    """Load the newest good checkpoint into the learner; None when there is none.

    A damaged one is set aside, and the one before it is used: the journal has the rest.

    Raises:
        ConfigError: The recipe changed in a way that the open groups cannot survive.
    """
    for path in reversed(step_folders(folder)):
        try:
            saved = load(path, learner, rules)
        except checkpoints.CheckpointUnusable as error:
            aside = path.with_name(f".{path.name}.damaged")
            logger.warning("setting %s aside as %s: %s", path.name, aside.name, error)
            path.rename(aside)
            continue
        logger.info("resuming from %s", path)
        return saved
    return None


def load(path: Path, learner: Learner, rules: Rules) -> SavedState:
    """Load one checkpoint into the learner; changes nothing on disk.

    Raises:
        CheckpointUnusable: It is damaged.
        ConfigError: The learner's recipe is one that the open groups cannot survive.
    """
    restored = checkpoints.load(path, learner)
    _check_config(restored.config, learner)
    extra = restored.extra
    return SavedState(
        run_id=extra["run_id"],
        position=Position(*extra["position"]),
        ledger=Ledger.from_json(extra["ledger"], rules),
        evaluations=Evaluations.from_json(extra["evaluations"]),
        tally=Tally(extra["tally"]),
    )


def _check_config(saved: dict[str, Any], learner: Learner) -> None:
    now = learner.config.model_dump(mode="json")
    for section, key in (("run", "seed"), ("algorithm", "group_size"), ("trainer", "lora_alpha")):
        before, after = saved[section][key], now[section][key]
        if before != after:
            raise ConfigError(
                f"{section}.{key} was {before} and is now {after}: the run cannot go on with it",
                hint="resume with the old value, or begin another run",
            )
