"""When a trainer must not go on: with which exit code it ends, what it says, how it goes on."""

import asyncio
from typing import Any

import pytest

from consumers.trainer.books.ends import Ends
from consumers.trainer.learn.learner import Learner
from consumers.trainer.telling.books_text import to_json
from consumers.trainer.telling.history import read_history
from infra.runs.folder import RunFolder
from infra.runs.metrics import read_metrics
from schemas.journal import Skipped, Stepped
from tests.factories.world import World, working
from tests.integration.trainer.books import records_of

pytestmark = pytest.mark.broker


async def test_books_that_do_not_balance_stop_it(
    recipe, trainer, connect, monkeypatch, capfd
) -> None:
    """A group that ends without anybody noting it."""
    real = Ends.set

    def forget(self: Ends, group: int, end: Any) -> None:
        real(self, group, end)
        if group == 2:
            self.counts[end] -= 1

    monkeypatch.setattr(Ends, "set", forget)
    config = recipe(run={"steps": 9})
    async with working(World(await connect(app_id="world/0"))):
        assert await asyncio.wait_for(trainer(config), 60) == 6
    text = capfd.readouterr().out
    assert "the books do not balance at step" in text and "(+1 missing)" in text


async def test_silence_stops_it_where_the_recipe_says_so(recipe, trainer, connect, capfd) -> None:
    """Nobody answers: it says what is missing and since when, then ends."""
    config = recipe(
        deadlines={"stall": 10.0, "warn_after": 1.0, "on_deadline": "stop", "reissue_grace": 60}
    )
    world = World(await connect(app_id="world/0"), copies=lambda _id: 0)
    async with working(world):
        assert await asyncio.wait_for(trainer(config), 60) == 5
    text = capfd.readouterr().out
    assert "waiting for batch of step 1: 0/2 groups ready · 12 rollouts of 3 groups" in text
    assert "nothing arrived for 10 s while waiting for batch of step 1" in text


async def test_silence_is_said_where_the_recipe_only_warns(recipe, trainer, connect, capfd) -> None:
    config = recipe(
        run={"steps": 1}, deadlines={"stall": 1.0, "warn_after": 60.0, "reissue_grace": 60}
    )
    world = World(await connect(app_id="world/0"), copies=lambda _id: 0)
    said = ""
    async with working(world):
        running = asyncio.create_task(trainer(config))
        await world.until(lambda: len(world.credits) >= 2 and world.states != [])
        async with asyncio.timeout(60):
            while "WARNING  nothing arrived for 1 s while waiting" not in said:
                await asyncio.sleep(0.1)
                said += capfd.readouterr().out
        world.copies = lambda _id: 1
        for credit in tuple(world.credits):
            for index in credit.indexes:
                await world.deliver(credit, index, run_id=world.states[0].run_id)
        assert await asyncio.wait_for(running, 60) == 0


@pytest.mark.timeout(200)
async def test_a_step_that_fails_twice_stops_it_and_can_be_skipped(
    recipe, trainer, connect, monkeypatch, capfd
) -> None:
    """Once ends it in a way that a supervisor answers with a restart; twice does not."""
    real = Learner.step

    def fail(self: Learner, batch: Any, step: int, **rest: Any) -> Any:
        if step == 3:
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
        return real(self, batch, step, **rest)

    monkeypatch.setattr(Learner, "step", fail)
    config = recipe(run={"steps": 5}, checkpoint={"every": 2})
    async with working(World(await connect(app_id="world/0"))) as world:
        assert await asyncio.wait_for(trainer(config), 60) == 1
        for _ in range(2):
            assert await asyncio.wait_for(trainer(config, resume=True), 60) == 8
        books = to_json(read_history(config), now=0.0)
        assert (books["step"], books["stepped"], books["trained"]) == (3, 2, 6)
        assert await asyncio.wait_for(trainer(config, resume=True, skip_step=3), 60) == 0
        await world.until(lambda: world.over)
    text = capfd.readouterr().out
    assert "step 3 failed again" in text and "--resume --skip-step 3" in text
    records = records_of(config)
    assert [r.step for r in records if isinstance(r, Stepped)] == [1, 2, 4, 5]
    (skipped,) = [r for r in records if isinstance(r, Skipped)]
    assert "mat1 and mat2" in skipped.reason and len(skipped.groups) == 2
    end = list(read_metrics(RunFolder.of(config).metrics, "end"))[-1]
    assert (
        end["ledger/balanced"],
        end["ledger/trained"],
        end["ledger/dead"],
        end["ledger/open"],
    ) == (True, 8, 2, 0)
    assert not (RunFolder.of(config).root / "failed_step.json").exists()
