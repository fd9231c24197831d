"""What the broker lost is asked for again: queues purged by hand, its whole disk."""

import asyncio
import shutil
from pathlib import Path

import pytest

from infra.amqp.local_broker import LocalBroker
from infra.runs.folder import RunFolder
from infra.runs.journal_reader import JournalReader
from infra.runs.metrics import read_metrics
from schemas.journal import Batch
from tests.factories.relay import Relay
from tests.factories.world import working

pytestmark = pytest.mark.broker

DEADLINES = {"reissue_grace": 1.5, "warn_after": 5.0, "stall": 90.0}


def check_end(config, *, steps: int) -> dict[str, float]:
    """The books balance, nothing is open or dead, nothing was trained twice."""
    folder = RunFolder.of(config)
    (end,) = read_metrics(folder.metrics, "end")
    assert end["ledger/balanced"] and end["ledger/open"] == 0 and end["ledger/dead"] == 0
    assert end["ledger/trained"] == steps * config.algorithm.groups_per_step
    records = [entry.record for entry in JournalReader(folder.journal).records()]
    members = [m for record in records if isinstance(record, Batch) for m in record.members]
    assert len(members) == len(set(members))
    return end


@pytest.mark.timeout(300)
async def test_every_queue_is_purged_in_turn(recipe, trainer, connect, with_eval) -> None:
    """Credits, prompts, snapshots, rollouts, evaluation prompts; then single last messages."""
    data = {"train": recipe().model_dump()["data"]["train"], **with_eval}
    config = recipe(
        run={"steps": 12}, data=data, eval={"every": 20, "prompts": 4}, deadlines=DEADLINES
    )
    world = Relay(await connect(app_id="world/0"), held={"eval_prompts"})
    async with working(world):
        running = asyncio.create_task(trainer(config))
        await world.hold_and_purge("eval_prompts", at_least=4)
        await world.hold_and_purge("credits")
        lost = 1  # a message of a train member each; one more is dropped below
        for queue in ("prompts", "cancel_queue", "rollouts"):
            lost += await world.hold_and_purge(queue)
        world.lose |= {"rollouts", "eval_prompts"}
        assert await asyncio.wait_for(running, 200) == 0
    end = check_end(config, steps=12)
    assert end["total/reissued"] >= lost
    assert world.num_lost == 2
    first, last = read_metrics(RunFolder.of(config).metrics, "eval")
    assert (first["eval/num_scored"], last["eval/num_scored"]) == (4, 4)
    assert {c.attempt for c in world.credits if c.purpose == "eval"} >= {0, 1}


@pytest.mark.timeout(300)
async def test_the_brokers_disk_is_lost(
    recipe, trainer, connect, killable_node: LocalBroker, monkeypatch
) -> None:
    """Every role declares the run again, the fence is taken again, what was open is asked again."""
    monkeypatch.setenv("WARREN_BROKER_URL", killable_node.url)
    config = recipe(run={"steps": 8}, deadlines=DEADLINES, broker={"heartbeat": 5})
    broker = await connect(app_id="world/0", url=killable_node.url)
    world = Relay(broker)
    async with working(world):
        running = asyncio.create_task(trainer(config))
        await world.until(lambda: world.version >= 2, 100)
        world.held.add("prompts")
        async with asyncio.timeout(60):
            while (await broker.depth("prompts"))[0] < 4:
                await asyncio.sleep(0.02)
        await asyncio.to_thread(wipe, killable_node)
        world.held.clear()
        assert await asyncio.wait_for(running, 200) == 0
        await world.until(lambda: world.over)
    assert check_end(config, steps=8)["total/reissued"] >= 4


def wipe(node: LocalBroker) -> None:
    """Power cut, and an empty disk afterwards; the ports stay."""
    node.kill()
    shutil.rmtree(Path(node.folder) / "mnesia")
    (Path(node.folder) / "streams-settled").unlink()
    node.start(timeout_s=120.0)
