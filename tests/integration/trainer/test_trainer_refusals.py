"""A newest version that no rollout worker can read: its weights go out again."""

import asyncio
import contextlib
import signal

import pytest

from infra.amqp.codec import encode
from infra.amqp.connection import Broker
from infra.amqp.message import Delivery, Outgoing
from infra.runs.folder import RunFolder
from infra.runs.metrics import read_metrics
from schemas.control import Heartbeat
from schemas.journal import Batch, Published
from tests.factories.world import World, working
from tests.integration.trainer.books import records_of

pytestmark = pytest.mark.broker


class Refusing(World):
    """Cannot serve some versions, and says so in the heartbeats of its one worker."""

    def __init__(self, broker: Broker, damaged: set[int]) -> None:
        super().__init__(broker)
        self.damaged = damaged
        self.refuses = -1

    async def _hear(self, delivery: Delivery) -> None:
        before = self.version
        await super()._hear(delivery)
        if self.version in self.damaged:
            self.version, self.refuses = before, self.version

    async def beat(self) -> None:
        while True:
            beat = Heartbeat(
                role="rollout",
                worker="w",
                host="h",
                pid=1,
                state="running",
                version=self.version,
                refuses=self.refuses if self.refuses > self.version else -1,
            )
            envelope, body = encode(beat, app_id="w", correlation_id="w", headers={})
            await self.broker.emit(
                Outgoing(exchange="events", routing_key="heartbeat", envelope=envelope, body=body)
            )
            await asyncio.sleep(0.3)


@contextlib.asynccontextmanager
async def refusing(world: Refusing):
    beats = asyncio.create_task(world.beat())
    try:
        async with working(world):
            yield world
    finally:
        beats.cancel()


@pytest.mark.timeout(120)
async def test_on_policy_an_unreadable_version_goes_out_again(recipe, trainer, connect) -> None:
    """Staleness 0: nothing may be sampled under the version before it."""
    config = recipe(run={"steps": 3}, algorithm={"max_staleness": 0.0})
    world = Refusing(await connect(app_id="world/0"), damaged={1})
    async with refusing(world):
        assert await asyncio.wait_for(trainer(config), 100) == 0
    records = records_of(config)
    published = [record for record in records if isinstance(record, Published)]
    assert [(p.version, p.step) for p in published] == [(0, 0), (1, 1), (2, 1), (3, 2), (4, 3)]
    assert published[1].fingerprint == published[2].fingerprint != published[3].fingerprint
    batches = [record for record in records if isinstance(record, Batch)]
    assert [(batch.step, batch.version) for batch in batches] == [(1, 0), (2, 2), (3, 3)]
    (end,) = read_metrics(RunFolder.of(config).metrics, "end")
    assert end["ledger/balanced"] and end["version"] == 4


@pytest.mark.timeout(120)
async def test_an_evaluation_that_nobody_can_run_ends_at_once(
    recipe, trainer, connect, with_eval
) -> None:
    """It is closed as incomplete, and holds the next publication no longer. That of the last
    version is made up for under the number after it."""
    data = {"train": recipe().model_dump()["data"]["train"], **with_eval}
    config = recipe(
        run={"steps": 3},
        data=data,
        eval={"every": 1, "prompts": 4},
        algorithm={"max_staleness": 0.0},
    )
    world = Refusing(await connect(app_id="world/0"), damaged={1, 4})
    async with refusing(world):
        assert await asyncio.wait_for(trainer(config), 100) == 0
    lines = {line["version"]: line for line in read_metrics(RunFolder.of(config).metrics, "eval")}
    scored = {version: line["eval/num_scored"] for version, line in sorted(lines.items())}
    assert scored == {0: 4, 1: 0, 2: 4, 3: 4, 4: 0, 5: 4}
    assert (lines[4]["step"], lines[5]["step"]) == (3, 3)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("place", ["manifest.linked:3", "step.taken:2"])
async def test_a_trainer_that_dies_around_that_resumes_the_same(
    recipe, spawn, connect, place: str
) -> None:
    """Killed before the journal knows of the second publication, and in the step behind it."""
    config = recipe(run={"steps": 3}, algorithm={"max_staleness": 0.0})
    world = Refusing(await connect(app_id="world/0"), damaged={1})
    async with refusing(world):
        child = spawn(config, env={"WARREN_FAILPOINT": place})
        assert await asyncio.to_thread(child.wait, 100) == -signal.SIGKILL
        child = spawn(config, resume=True)
        await world.until(lambda: world.over, 100)
        assert await asyncio.to_thread(child.wait, 60) == 0
    records = records_of(config)
    published = {record.version: record for record in records if isinstance(record, Published)}
    assert [(p.version, p.step) for p in published.values()] == [
        (0, 0),
        (1, 1),
        (2, 1),
        (3, 2),
        (4, 3),
    ]
    assert published[1].fingerprint == published[2].fingerprint
    assert len({p.fingerprint for p in published.values()}) == 4
    batches = [record for record in records if isinstance(record, Batch)]
    assert [(batch.step, batch.version) for batch in batches] == [(1, 0), (2, 2), (3, 3)]
    lines = list(read_metrics(RunFolder.of(config).metrics, "end"))
    assert lines[-1]["ledger/balanced"] and lines[-1]["version"] == 4
