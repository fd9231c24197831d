"""The trainer against a real broker and a real learner; the other roles are a few lines."""

import asyncio

import pytest

from infra.amqp.codec import encode
from infra.amqp.message import Outgoing
from infra.runs.folder import RunFolder
from infra.runs.journal_reader import JournalReader
from infra.runs.metrics import read_metrics
from schemas.control import Command, Verb, Wanted
from schemas.journal import Batch, Stepped
from tests.factories.world import World, working
from tests.integration.trainer.books import records_of

pytestmark = pytest.mark.broker


async def test_steps_run_and_the_books_balance(recipe, trainer, connect) -> None:
    config = recipe(run={"steps": 4})
    async with working(World(await connect(app_id="world/0"))) as world:
        assert await asyncio.wait_for(trainer(config), 100) == 0
        await world.until(lambda: world.over)

    folder = RunFolder.of(config)
    steps = list(read_metrics(folder.metrics, "step"))
    assert [line["step"] for line in steps] == [1, 2, 3, 4]
    (end,) = read_metrics(folder.metrics, "end")
    assert end["ledger/balanced"] and end["ledger/trained"] == 8
    assert (
        end["ledger/issued"]
        == end["ledger/trained"] + end["ledger/filtered"] + end["ledger/dead"] + end["ledger/open"]
    )
    assert [weights.version for weights in world.published] == [0, 1, 2, 3, 4]
    batches = [e.record for e in JournalReader(folder.journal).records()]
    members = [m for record in batches if isinstance(record, Batch) for m in record.members]
    assert len(members) == len(set(members))
    numbers = [credit.group for credit in world.credits]
    assert sorted(numbers) == list(range(end["ledger/issued"]))


async def test_failures_duplicates_and_equal_rewards_end_where_they_belong(
    recipe, trainer, connect
) -> None:
    """Group n mod 4: 0 is fine, 1 has equal rewards, 2 loses three members, 3 loses one."""

    def fails(rollout_id: str) -> bool:
        group, index = map(int, rollout_id.split("."))
        return index < {2: 3, 3: 1}.get(group % 4, 0)

    def reward(rollout_id: str) -> float:
        group, index = map(int, rollout_id.split("."))
        return 0.5 if group % 4 == 1 else float(index % 2)

    config = recipe(run={"steps": 3})
    world = World(await connect(app_id="world/0"), reward=reward, fails=fails, copies=lambda _id: 2)
    async with working(world):
        assert await asyncio.wait_for(trainer(config), 100) == 0

    folder = RunFolder.of(config)
    (end,) = read_metrics(folder.metrics, "end")
    assert end["ledger/balanced"] and end["ledger/trained"] == 6 and end["ledger/stale"] == 0
    ends: dict[int, str] = {}
    for entry in JournalReader(folder.journal).records():
        for closed in getattr(entry.record, "closed", ()):
            assert closed.group not in ends
            ends[closed.group] = closed.end
    assert all(end == {1: "filtered", 2: "dead"}.get(g % 4, "trained") for g, end in ends.items())
    assert {"filtered", "dead", "trained"} <= set(ends.values())
    assert end["total/late"] > 0


async def test_evaluations_pin_their_version_and_hold_publications(
    recipe, trainer, connect, with_eval
) -> None:
    config = recipe(
        run={"steps": 5}, data=with_eval_data(recipe, with_eval), eval={"every": 2, "prompts": 3}
    )
    async with working(World(await connect(app_id="world/0"))) as world:
        assert await asyncio.wait_for(trainer(config), 100) == 0

    lines = list(read_metrics(RunFolder.of(config).metrics, "eval"))
    assert [line["version"] for line in lines] == [0, 2, 4, 5]
    for line in lines:
        assert line["eval/num_scored"] == line["eval/num_asked"] == 3
        assert line["eval/num_other_version"] == 0
    asked = [credit for credit in world.credits if credit.purpose == "eval"]
    assert [credit.group for credit in asked] == [0, 2, 4, 5]
    assert all(credit.indexes == (0, 1, 2) for credit in asked)


async def test_an_evaluation_that_does_not_come_back_closes_with_its_count(
    recipe, trainer, connect, with_eval
) -> None:
    config = recipe(
        run={"steps": 1},
        data=with_eval_data(recipe, with_eval),
        eval={"every": 1, "prompts": 4},
        deadlines={"eval_deadline": 5.0},
    )
    world = World(await connect(app_id="world/0"), copies=lambda i: int(i != "eval0.3"))
    async with working(world):
        assert await asyncio.wait_for(trainer(config), 100) == 0
    first, last = read_metrics(RunFolder.of(config).metrics, "eval")
    assert (first["version"], first["eval/num_scored"], first["eval/num_asked"]) == (0, 3, 4)
    assert (last["version"], last["eval/num_scored"]) == (1, 4)


def with_eval_data(recipe, with_eval) -> dict[str, object]:
    """`data` with both files."""
    return {"train": recipe().model_dump()["data"]["train"], **with_eval}


async def test_several_steps_between_publications(recipe, trainer, connect) -> None:
    config = recipe(run={"steps": 5}, algorithm={"steps_per_publish": 2, "max_staleness": 0})
    async with working(World(await connect(app_id="world/0"))) as world:
        assert await asyncio.wait_for(trainer(config), 100) == 0
        await world.until(lambda: world.over)
    assert [(w.version, w.step) for w in world.published] == [(0, 0), (1, 2), (2, 4), (3, 5)]
    steps = list(read_metrics(RunFolder.of(config).metrics, "step"))
    assert [line["version"] for line in steps] == [0, 0, 1, 1, 2]


async def test_outstanding_groups_never_exceed_the_limit(recipe, trainer, connect) -> None:
    """Journal order shows it: issued minus closed is at most (1 + 1.5) x 2 at any moment."""
    config = recipe(run={"steps": 4}, algorithm={"max_staleness": 1.5})
    async with working(World(await connect(app_id="world/0"))):
        assert await asyncio.wait_for(trainer(config), 100) == 0
    open_groups: set[int] = set()
    most = 0
    for record in records_of(config):
        if record.record == "issued":
            open_groups |= set(record.groups)
        for closed in getattr(record, "closed", ()):
            open_groups.remove(closed.group)
        most = max(most, len(open_groups))
    assert most == 5
    assert not open_groups


async def command(world: World, verb: Verb, number: int) -> None:
    """As `run.py control` sends it."""
    run_id = world.states[-1].run_id
    envelope, body = encode(
        Command(run_id=run_id, verb=verb, number=number),
        app_id="op/0",
        correlation_id="",
        headers={"run_id": run_id},
    )
    await world.broker.publish(
        Outgoing(exchange="sync", routing_key="", envelope=envelope, body=body)
    )


async def test_a_run_that_is_resumed_with_fewer_steps_leaves_its_groups_open_and_says_so(
    recipe, trainer, connect, capfd
) -> None:
    async with working(World(await connect(app_id="world/0"), delay_s=0.02)) as world:
        running = asyncio.create_task(trainer(recipe(run={"steps": 9})))
        await world.until(lambda: world.version >= 1)
        await command(world, "stop", 1)
        assert await asyncio.wait_for(running, 60) == 0
        shorter = recipe(run={"steps": 1})
        assert await asyncio.wait_for(trainer(shorter, resume=True), 60) == 0
    end = list(read_metrics(RunFolder.of(shorter).metrics, "end"))[-1]
    said = capfd.readouterr().out
    assert end["ledger/balanced"] and end["ledger/open"] > 0
    assert f"run.steps is 1: {end['ledger/open']} groups stay open until" in said
    assert "the run is complete" not in said


async def test_pause_and_stop(recipe, trainer, connect) -> None:
    """Commands are answered by `RunState`; a stopped run can be resumed to its end."""
    config = recipe(run={"steps": 6})
    broker = await connect(app_id="world/0")
    async with working(World(broker, delay_s=0.02)) as world:
        running = asyncio.create_task(trainer(config))
        await world.until(lambda: world.version >= 1)
        await command(world, "pause", 1)
        await world.until(lambda: world.states[-1].wanted is Wanted.PAUSED)
        await command(world, "resume", 2)
        await world.until(lambda: world.states[-1].wanted is Wanted.RUNNING)
        await command(world, "stop", 3)
        assert await asyncio.wait_for(running, 60) == 0
        await world.until(lambda: world.over)
        numbers = [state.number for state in world.states]
        assert numbers == sorted(numbers)
        world.states.clear()
        assert await asyncio.wait_for(trainer(config, resume=True), 60) == 0
        await world.until(lambda: world.over)
    end = list(read_metrics(RunFolder.of(config).metrics, "end"))[-1]
    assert end["ledger/balanced"] and end["ledger/trained"] == 12 and end["ledger/open"] == 0
    steps = [r.step for r in records_of(config) if isinstance(r, Stepped)]
    assert steps == [1, 2, 3, 4, 5, 6]
