"""Which steps are asked for, where the way to them begins, and what the journal says of them.

newest checkpoint before the first one (of `all`: the oldest) --> records behind it
the starting model, where the journal still begins at the run's start
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from consumers.trainer.learn.checkpoints import CheckpointUnusable, read_config, read_extra
from consumers.trainer.learn.durable_folders import step_folders
from consumers.trainer.replay.wanted import Wanted
from infra.roles.errors import ConfigError
from infra.runs.folder import RunFolder
from infra.runs.journal_reader import JournalReader, Position, RecordCorrupt
from schemas.journal import Opened, Skipped, Stepped


@dataclass(frozen=True, slots=True)
class Base:
    """Where a walk can begin."""

    step: int
    """Steps behind it."""
    checkpoint: Path | None
    """None is the starting model."""
    position: Position | None

    def __str__(self) -> str:
        return "the starting model" if self.checkpoint is None else self.checkpoint.name


@dataclass(slots=True, kw_only=True)
class Plan:
    """A base, and what the journal records behind it."""

    base: Base
    first: int
    last: int
    recorded: dict[int, Stepped | Skipped] = field(default_factory=dict)
    """Of every step behind the base, up to `last`."""
    config: dict[str, Any] = field(default_factory=dict)
    """The recipe at the base, as it was recorded; empty when nobody told."""
    run_id: str = ""
    damage: RecordCorrupt | None = None
    """Where the journal ends before its end."""


def plans(folder: RunFolder, wanted: Wanted) -> Iterator[Plan]:
    """Ways to the wanted steps, best first: one goes on to the next when a checkpoint is damaged.

    Raises:
        ConfigError: There is no run, or no such step in it (any more).
        RecordCorrupt: The journal is damaged before the first one.
    """
    reader = JournalReader(folder.journal)
    if not reader.history():
        raise ConfigError(
            f"no trainer has written a journal in {folder.root}",
            hint="name a run folder with --run; a run appears when its trainer has started",
        )
    bases = _bases(folder, reader)
    if not bases:
        raise ConfigError(
            f"{folder.journal} begins after the run's start and no checkpoint reaches it",
            hint="restore a checkpoint or the older segments",
        )
    first, oldest = wanted.first, bases[0].step + 1
    if first is not None:
        usable = [base for base in bases if base.step < first]
        if not usable:
            raise ConfigError(
                f"step {wanted.first} is not in the journal any more: what is left begins with "
                f"step {oldest}",
                hint="checkpoint.keep and checkpoint.journal_bytes say how much a run keeps",
            )
        bases = usable[::-1]
    for base in bases:
        yield _plan(reader, base, wanted, oldest=oldest)


def _bases(folder: RunFolder, reader: JournalReader) -> list[Base]:
    """By step, oldest first; a checkpoint counts if the journal goes on from it."""
    limits = {stretch.segment: stretch.limit for stretch in reader.history()}
    bases = [Base(0, None, None)] if reader.begins_at_start() else []
    for path in step_folders(folder.checkpoints):
        try:
            segment, offset = read_extra(path)["position"]
        except (CheckpointUnusable, LookupError, TypeError, ValueError):
            continue
        if segment not in limits or offset > (limits[segment] or offset):
            continue
        bases.append(Base(int(path.name.removeprefix("step_")), path, Position(segment, offset)))
    return bases


def _plan(reader: JournalReader, base: Base, wanted: Wanted, *, oldest: int) -> Plan:
    plan = Plan(base=base, first=wanted.first or base.step + 1, last=wanted.last or base.step)
    if base.checkpoint is not None:
        plan.config = read_config(base.checkpoint)
    try:
        for entry in reader.records(base.position):
            record = entry.record
            if isinstance(record, Opened):
                plan.run_id = plan.run_id or record.run_id
                if base.checkpoint is None:
                    plan.config = plan.config or record.config
            elif isinstance(record, Stepped | Skipped):
                plan.recorded[record.step] = record
                if record.step == wanted.last:
                    break
    except RecordCorrupt as damage:
        plan.damage = damage
    newest = max(plan.recorded, default=base.step)
    if wanted.last is None:
        plan.last = newest
    _check(plan, oldest, newest)
    return plan


def _check(plan: Plan, oldest: int, newest: int) -> None:
    if plan.last <= newest and plan.first <= newest:
        if plan.first == plan.last and isinstance(skipped := plan.recorded[plan.first], Skipped):
            raise ConfigError(
                f"step {plan.first} was given up, so nothing was trained: {skipped.reason}",
                hint="its groups ended as dead; `run.py ledger` counts them",
            )
        return
    if plan.damage is not None:
        raise plan.damage
    missing = plan.first if plan.first > newest else newest + 1
    there = f"{oldest} to {newest}" if oldest <= newest else "none"
    raise ConfigError(
        f"step {missing} was not taken yet: the newest in the journal is step {newest}",
        hint=f"steps that can be replayed: {there}; a living run takes more, --run names another",
    )
