"""kill -9, resume, refusals: what was decided stays decided."""

import asyncio
import shutil
from pathlib import Path

import pytest

from infra.amqp.codec import encode
from infra.amqp.message import Outgoing
from infra.runs.folder import RunFolder
from infra.runs.metrics import read_metrics
from schemas.headers import Headers
from schemas.journal import Stepped
from schemas.work import Credit
from tests.factories.world import World, trajectory, working
from tests.integration.trainer.books import check_books, records_of

pytestmark = pytest.mark.broker


def steps_of(config) -> list[tuple[int, str]]:
    """Step numbers and weights' hashes, in journal order."""
    return [(r.step, r.weights_sha256) for r in records_of(config) if isinstance(r, Stepped)]


def check_run(config, *, steps: int) -> None:
    """The books are in order, and every step has its line."""
    check_books(config, steps=steps)
    lines = read_metrics(RunFolder.of(config).metrics, "step")
    assert {line["step"] for line in lines} == set(range(1, steps + 1))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kills", [(2,), (1, 3, 4)])
async def test_killed_in_the_middle_the_run_goes_on(recipe, spawn, connect, kills) -> None:
    """SIGKILL when version n appears; the resumed trainer repeats the journaled steps exactly."""
    config = recipe(run={"steps": 6}, checkpoint={"every": 3})
    async with working(World(await connect(app_id="world/0"), delay_s=0.01)) as world:
        child = spawn(config)
        for version in kills:
            await world.until(lambda version=version: world.version >= version, 100)
            child.kill()
            child.wait()
            child = spawn(config, resume=True)
        await world.until(lambda: world.over, 100)
        assert await asyncio.to_thread(child.wait, 60) == 0
    steps = steps_of(config)
    assert [step for step, _ in steps] == [1, 2, 3, 4, 5, 6]
    check_run(config, steps=6)
    versions = [weights.version for weights in world.published]
    assert versions == sorted(versions) and max(versions) == 6
    fingerprints = {(weights.version, weights.fingerprint) for weights in world.published}
    assert len(fingerprints) == 7


@pytest.mark.timeout(200)
async def test_a_second_trainer_is_refused(recipe, spawn, trainer, connect) -> None:
    """Also with --resume: the living one goes on unharmed."""
    config = recipe(run={"steps": 4000})
    async with working(World(await connect(app_id="world/0"), delay_s=0.05)) as world:
        first = spawn(config)
        await world.until(lambda: world.version >= 1, 100)
        assert await trainer(config, resume=True) == 1
        assert await trainer(config) == 1
        version = world.version
        await world.until(lambda: world.version > version, 60)
        assert first.poll() is None


async def test_leftovers_are_refused_and_purged(recipe, trainer, connect) -> None:
    config = recipe(run={"steps": 1})
    broker = await connect(app_id="world/0")
    credit = Credit(group=0, indexes=(0,), dataset_fingerprint="0", seed=0, group_size=4)
    envelope, body = encode(
        credit, app_id="x/0", correlation_id="0", headers=Headers(run_id="old", group=0).to_amqp()
    )
    await broker.publish(
        Outgoing(exchange="work", routing_key="prompt", envelope=envelope, body=body)
    )
    assert await trainer(config) == 2
    async with working(World(broker)):
        assert await trainer(config, purge=True) == 0
    assert await broker.depth("prompts") == (0, 0)
    assert await trainer(config) == 2
    async with working(World(broker)):
        assert await trainer(config, purge=True) == 0
    check_run(config, steps=1)


async def test_foreign_and_broken_messages_are_dead_lettered(recipe, trainer, connect) -> None:
    """Each with its reason; the run goes on and ends."""
    config = recipe(run={"steps": 3})
    broker = await connect(app_id="world/0")
    credit = Credit(group=0, indexes=(0,), dataset_fingerprint="0", seed=0, group_size=4)
    scored = trajectory(credit, 0, version=0, reward=1.0)
    world = World(broker, delay_s=0.02)
    async with working(world):
        running = asyncio.create_task(trainer(config))
        await world.until(lambda: world.version >= 0 and world.states != [])
        run_id = world.states[0].run_id
        headers = Headers(run_id="another", group=0, index=0, rollout_id="0.0")
        await world.send(scored, headers)
        unknown = scored.model_copy(
            update={
                "rollout": scored.rollout.model_copy(update={"group": 99, "rollout_id": "99.0"})
            }
        )
        headers = Headers(run_id=run_id, group=99, index=0, rollout_id="99.0")
        await world.send(unknown, headers)
        future = trajectory(credit, 1, version=7, reward=1.0)
        headers = Headers(run_id=run_id, group=0, index=1, rollout_id="0.1", attempt=5)
        await world.send(future, headers)
        headers = Headers(run_id=run_id, group=0, index=2, rollout_id="0.2", attempt=5)
        envelope, body = encode(scored, app_id="x/0", correlation_id="", headers=headers.to_amqp())
        torn = body[: len(body) // 2]
        await broker.publish(
            Outgoing(exchange="work", routing_key="trajectory", envelope=envelope, body=torn)
        )
        assert await asyncio.wait_for(running, 60) == 0
    reasons = []
    while (delivery := await broker.get("dead_letters")) is not None:
        from infra.amqp.codec import decode
        from schemas.work import Failure

        reasons.append(decode(delivery, delivery.body, Failure).error)
        broker.ack(delivery)
    assert len(reasons) == 4
    for part in ("belongs to run 'another'", "'99.0' was never issued", "claim version 7", "crc32"):
        assert any(part in reason for reason in reasons), (part, reasons)
    check_run(config, steps=3)


@pytest.mark.timeout(200)
async def test_a_damaged_checkpoint_is_set_aside(recipe, trainer, connect) -> None:
    """The one before it is used, and the journal behind it replayed to the same weights."""
    config = recipe(run={"steps": 4}, checkpoint={"every": 2})
    longer = recipe(run={"steps": 6}, checkpoint={"every": 2})
    async with working(World(await connect(app_id="world/0"))):
        assert await trainer(config) == 0
        newest = RunFolder.of(config).checkpoints / "step_4"
        weights = newest / "state" / "weights.safetensors"
        data = bytearray(weights.read_bytes())
        data[-5] ^= 1
        weights.write_bytes(data)
        assert await trainer(longer, resume=True) == 0
    assert [step for step, _ in steps_of(config)] == [1, 2, 3, 4, 5, 6]
    check_run(longer, steps=6)


@pytest.mark.timeout(200)
async def test_without_any_checkpoint_the_journal_is_enough(recipe, trainer, connect) -> None:
    config = recipe(run={"steps": 3})
    longer = recipe(run={"steps": 5})
    async with working(World(await connect(app_id="world/0"))) as world:
        assert await trainer(config) == 0
        shutil.rmtree(RunFolder.of(config).checkpoints)
        assert await trainer(longer, resume=True) == 0
        await world.until(lambda: world.published[-1].version == 5)
    check_run(longer, steps=5)
    assert len({(w.version, w.fingerprint) for w in world.published}) == 6


async def test_without_the_weight_store_the_weights_go_out_again(recipe, trainer, connect) -> None:
    """Workers could not join otherwise: each side would wait for the other."""
    async with working(World(await connect(app_id="world/0"))):
        assert await trainer(recipe(run={"steps": 2})) == 0
    config = recipe(run={"steps": 4})
    shutil.rmtree(RunFolder.of(config).root / "weights")
    async with working(World(await connect(app_id="world/1"))) as world:
        assert await trainer(config, resume=True) == 0
        await world.until(lambda: world.over)
    assert [weights.version for weights in world.published] == [3, 4, 5]
    check_run(config, steps=4)


async def test_a_full_disk_stops_before_acknowledging(
    recipe, trainer, connect, monkeypatch
) -> None:
    """The journal's file refuses; what was not journaled is still at the broker."""
    import errno
    import os

    config = recipe(run={"steps": 3})
    real_write = os.write
    state = {"full": False}

    def write(fd: int, data: bytes) -> int:
        path = Path(f"/proc/self/fd/{fd}").resolve()
        if state["full"] and path.suffix == ".journal":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real_write(fd, data)

    monkeypatch.setattr(os, "write", write)
    broker = await connect(app_id="world/0")
    world = World(broker, delay_s=0.02)
    async with working(world):
        running = asyncio.create_task(trainer(config))
        await world.until(lambda: world.version >= 1)
        state["full"] = True
        assert await asyncio.wait_for(running, 60) == 1
        state["full"] = False
        assert await asyncio.wait_for(trainer(config, resume=True), 60) == 0
    check_run(config, steps=3)


@pytest.mark.timeout(200)
async def test_told_to_leave_it_saves_and_the_run_stays_open(recipe, spawn, connect) -> None:
    """SIGTERM ends this trainer, not the run: nobody hears `stopped`, and --resume goes on."""
    config = recipe(run={"steps": 8})
    async with working(World(await connect(app_id="world/0"), delay_s=0.02)) as world:
        child = spawn(config)
        await world.until(lambda: world.version >= 1, 100)
        child.terminate()
        assert await asyncio.to_thread(child.wait, 60) == 0
        assert not world.over
        (end,) = read_metrics(RunFolder.of(config).metrics, "end")
        assert end["ledger/balanced"] and end["step"] < 8
        assert (RunFolder.of(config).checkpoints / f"step_{end['step']}").is_dir()
        child = spawn(config, resume=True)
        await world.until(lambda: world.over, 100)
        assert await asyncio.to_thread(child.wait, 60) == 0
    check_run(config, steps=8)
