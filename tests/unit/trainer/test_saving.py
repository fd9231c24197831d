"""A checkpoint never knows more than the journal on disk."""

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from consumers.trainer.arriving.chronicle import Chronicle
from consumers.trainer.arriving.shelf import Shelf
from consumers.trainer.arriving.tally import Tally
from consumers.trainer.begin import has_history
from consumers.trainer.books.balance import Rules
from consumers.trainer.books.evaluation import Evaluations
from consumers.trainer.books.ledger import Ledger
from consumers.trainer.saving import Saver
from consumers.trainer.steering.fence import Fence
from infra.observe.waits import Waits
from infra.runs.folder import RunFolder
from infra.runs.incarnation import Incarnations
from infra.runs.journal import Journal
from infra.runs.journal_reader import JournalReader
from schemas.journal import Issued, Opened

RULES = Rules(
    group_size=2, min_group_size=2, filter_zero_variance=True, max_version_lag=8, on_stale="wait"
)


def context(root: Path) -> Any:
    """The part of a role's context that saving uses."""
    config = SimpleNamespace(checkpoint=SimpleNamespace(keep=2, journal_bytes=0))
    return SimpleNamespace(config=config, folder=RunFolder(root), waits=Waits())


async def test_a_record_that_comes_while_saving_begins_is_durable_or_not_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An arrival slips in during the fsync: the checkpoint's position must be on disk with it."""
    folder = RunFolder(tmp_path)
    journal = Journal(folder.journal, Opened(run_id="r", incarnation=1, step=0))
    chronicle = Chronicle(
        journal=journal,
        ledger=Ledger(RULES),
        evaluations=Evaluations(),
        fence=Fence(Incarnations(folder.incarnations)),
        shelf=Shelf(JournalReader(folder.journal)),
        max_fruitless=9,
    )
    chronicle.note(Issued(groups=(0,)))
    loop, real, durable = asyncio.get_running_loop(), os.fsync, [0]

    def slow_fsync(fd: int) -> None:
        size = os.fstat(fd).st_size
        if not durable[0]:
            noting = asyncio.run_coroutine_threadsafe(note(), loop)
            noting.result()
        real(fd)
        durable[0] = size

    async def note() -> None:
        chronicle.note(Issued(groups=(1,)))

    saved: list[tuple[int, int, int]] = []

    def save(checkpoints: Path, learner: object, extra: dict[str, Any], *, keep: int) -> None:
        saved.append((extra["position"][1], extra["ledger"]["num_issued"], durable[0]))

    monkeypatch.setattr(os, "fsync", slow_fsync)
    monkeypatch.setattr("consumers.trainer.saving.checkpoints.save", save)
    learner: Any = SimpleNamespace(step_done=1)
    saver = Saver(context(tmp_path), chronicle, learner, Tally(), run_id="r")
    await saver.save()
    await chronicle.commit()
    monkeypatch.undo()
    journal.close()
    ((position, num_issued, on_disk),) = saved
    assert position <= on_disk
    ledger = Ledger(RULES)
    entries = JournalReader(folder.journal).records()
    for entry in entries:
        if entry.position.offset < position and entry.position.segment == "000001-000001.journal":
            ledger.apply(entry.record)
    assert ledger.num_issued == num_issued


def test_a_trainer_that_died_before_its_first_record_began_nothing(tmp_path: Path) -> None:
    """`--resume` then begins the run, instead of looking for a history that was never written."""
    ctx = context(tmp_path)
    assert not has_history(ctx)
    Journal(ctx.folder.journal, Opened(run_id="r", incarnation=1, step=0)).close()
    assert has_history(ctx)
    (segment,) = ctx.folder.journal.iterdir()
    os.truncate(segment, segment.stat().st_size // 2)
    assert not has_history(ctx)
    os.truncate(segment, 0)
    assert not has_history(ctx)
