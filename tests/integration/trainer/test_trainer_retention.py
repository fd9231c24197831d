"""A long run does not fill its folder, and what it keeps is enough to resume from."""

import asyncio
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from consumers.trainer.telling.books_text import to_json
from consumers.trainer.telling.history import read_history
from infra.runs.folder import RunFolder
from infra.runs.journal_reader import JournalReader, segment_names
from infra.runs.metrics import read_metrics
from schemas.journal import Stepped
from schemas.work import Credit
from tests.factories.world import World, working
from tests.integration.trainer.books import records_of

pytestmark = pytest.mark.broker


def size_of(config) -> dict[str, int]:
    """What the folder holds, by kind."""
    folder = RunFolder.of(config)
    return {
        "segments": len(segment_names(folder.journal)),
        "checkpoints": len(list(folder.checkpoints.iterdir())),
        "versions": sum(path.is_dir() for path in Path(folder.weights(config)).iterdir()),
    }


@pytest.mark.timeout(300)
async def test_the_journal_goes_with_its_checkpoints(recipe, trainer, connect) -> None:
    """Also in a trainer that did not write them itself; the oldest kept one can be resumed."""
    checkpoint = {"every": 2, "keep": 2, "journal_bytes": 0}
    weights = {"keyframe_every": 2}
    sizes = []
    async with working(World(await connect(app_id="world/0"))):
        for steps in (6, 10, 14):
            config = recipe(run={"steps": steps}, checkpoint=checkpoint, weights=weights)
            assert await trainer(config, resume=steps > 6) == 0
            sizes.append(size_of(config))
        assert all(size["checkpoints"] == 2 and size["segments"] <= 5 for size in sizes), sizes
        assert sizes[1]["versions"] == sizes[2]["versions"], sizes
        folder = RunFolder.of(config)
        kept = [e.record for e in JournalReader(folder.journal).records()]
        before = {r.step: r.weights_sha256 for r in kept if isinstance(r, Stepped)}
        assert set(before) >= {13, 14} and 1 not in before
        shutil.rmtree(folder.checkpoints / "step_14")
        longer = recipe(run={"steps": 15}, checkpoint=checkpoint, weights=weights)
        assert await trainer(longer, resume=True) == 0
    after = [e.record for e in JournalReader(folder.journal).records()]
    assert [r.step for r in after if isinstance(r, Stepped)][-1] == 15
    end = list(read_metrics(folder.metrics, "end"))[-1]
    assert end["ledger/balanced"] and end["ledger/trained"] == 15 * 2


async def test_history_that_nobody_needs_stays_while_it_is_small(recipe, trainer, connect) -> None:
    config = recipe(run={"steps": 6}, checkpoint={"every": 2, "keep": 1})
    async with working(World(await connect(app_id="world/0"))):
        assert await trainer(config) == 0
    records = records_of(config)
    assert [r.step for r in records if isinstance(r, Stepped)] == [1, 2, 3, 4, 5, 6]


async def test_the_books_are_read_beside_a_living_trainer(recipe, trainer, connect) -> None:
    """While segments are begun and removed under the reader; it takes no lock and stops nobody."""
    checkpoint = {"every": 1, "keep": 1, "journal_bytes": 0}
    config = recipe(run={"steps": 10}, checkpoint=checkpoint)
    seen: list[dict[str, Any]] = []
    world = World(await connect(app_id="world/0"), delay_s=0.01)
    deliver = world.deliver

    async def paced(credit: Credit, index: int, *, run_id: str) -> None:
        while len(seen) < credit.group:  # however slow the reader is, it sees most steps
            await asyncio.sleep(0.01)
        await deliver(credit, index, run_id=run_id)

    world.deliver = paced  # type: ignore[method-assign]
    async with working(world):
        running = asyncio.create_task(trainer(config))
        await world.until(lambda: world.version >= 0)
        while not running.done():
            books = to_json(await asyncio.to_thread(read_history, config), now=time.time())
            assert books["balanced"], books
            seen.append(books)
            await asyncio.sleep(0.02)
        assert await running == 0
    for name in ("issued", "trained", "step", "stepped", "version"):
        values = [books[name] for books in seen]
        assert values == sorted(values)
    assert len({books["step"] for books in seen}) > 3
    last = to_json(read_history(config), now=time.time())
    (end,) = read_metrics(RunFolder.of(config).metrics, "end")
    for name in ("issued", "open", "trained", "filtered", "stale", "dead"):
        assert last[name] == end[f"ledger/{name}"], name
    assert (last["step"], last["version"]) == (end["step"], end["version"])
    assert last["members"]["late"] == end["total/late"]
