"""The end of a storm: what was open then is given the time to end, and no more than that."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra.storm import storm as module
from infra.storm.storm import Storm
from tests.unit.infra.storm.judged_runs import RunMaker, begun, finish


def storm_of(run: RunMaker, own: Path) -> Storm:
    """A storm over a run folder made by hand."""
    return Storm(
        run.config, run.folder, own, seed=1, minutes=1.0, kinds=(), kills=0, entry=own / "run.py"
    )


@pytest.fixture
def up() -> Any:
    """An `up` that runs."""
    return SimpleNamespace(exit_code=None)


async def test_what_was_open_is_waited_for(tmp_path: Path, up: Any, monkeypatch) -> None:
    monkeypatch.setattr(module, "_GLANCE_S", 0.01)
    run = begun(tmp_path)
    storm = storm_of(run, tmp_path)
    mended = asyncio.create_task(storm._mended(up))
    while not storm._due:
        await asyncio.sleep(0.01)
    assert not mended.done()
    run.issue(8)  # later than the last fault: not waited for
    finish(run)
    await mended
    assert storm._due == 8


async def test_not_for_ever_nor_for_a_run_that_is_gone(
    tmp_path: Path, up: Any, monkeypatch
) -> None:
    monkeypatch.setattr(module, "_GLANCE_S", 0.01)
    run = begun(tmp_path)
    up.exit_code = 4
    await storm_of(run, tmp_path)._mended(up)
    up.exit_code = None
    monkeypatch.setattr(module, "_MEND_S", 0.0)
    hasty = run.config.deadlines.model_copy(update={"reissue_after": 0.1})
    run.config = run.config.model_copy(update={"deadlines": hasty})
    storm = storm_of(run, tmp_path)
    await storm._mended(up)
    assert storm._due == 8
    assert run.judged(due=storm._due).lost == 4
