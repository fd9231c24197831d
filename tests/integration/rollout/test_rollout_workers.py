"""Worker processes on a real node: leaving, dying, syncing, and a broker that restarts."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from infra.amqp.local_broker import LocalBroker
from schemas.work import Rollout
from tests.broker_fixtures import Connect
from tests.integration.rollout.rollout_world import World

pytestmark = [pytest.mark.broker, pytest.mark.timeout(400)]
MIDDLE = 80
"""Steps of an engine by which its first rollouts are done, or nearly, and others are not."""


@pytest.fixture
async def world(tmp_path: Path, connect: Connect, broker_url: str) -> AsyncIterator[World]:
    made = World(tmp_path, await connect(app_id="test/world"), broker_url, warm=True)
    await made.publish_weights(0)
    yield made
    await made.close()


def check_content(world: World) -> None:
    assert not world.missing()
    assert not world.failures, world.failures
    for rollout in world.rollouts:
        assert not world.wrong_tokens(rollout), (rollout.rollout_id, world.logs())


async def finished_by_b(world: World) -> list[Rollout]:
    """What a worker left behind in the middle, each moved once and come out once."""
    snapshots, _ = await world.broker.depth("cancel_queue")
    assert snapshots > 0, "what it had sampled went with the snapshots"
    await world.start("b")
    await world.collect(lambda: not world.missing())
    check_content(world)
    assert not world.repeated()
    moved = [one for one in world.rollouts if one.progress.interruptions]
    assert len(moved) == snapshots
    return moved


async def test_what_a_worker_hands_over_another_finishes(world: World) -> None:
    await world.put_tasks(24)
    await world.start("a", creeps_after=MIDDLE)
    await world.collect(lambda: len(world.rollouts) >= 2)
    assert await world.stop("a") == 0, world.logs()
    for rollout in await finished_by_b(world):
        (cut,) = rollout.progress.interruptions
        assert (cut.reason, cut.worker, rollout.worker) == ("leave", "a", "b")
        assert rollout.progress.num_resumed_elsewhere == 1
    assert await world.stop("b") == 0, "an idle worker leaves too"


async def test_what_a_killed_worker_held_another_does_again(world: World) -> None:
    await world.put_tasks(24)
    await world.start("a", creeps_after=MIDDLE)
    await world.collect(lambda: len(world.rollouts) >= 2)
    await world.stop("a", signal.SIGKILL)
    await world.start("b")
    await world.collect(lambda: not world.missing())
    check_content(world)
    contents = {(one.rollout_id, tuple(one.progress.tokens.token_ids)) for one in world.rollouts}
    assert len(contents) == 24, "what came twice came with the same content"
    assert (await world.broker.depth("prompts"))[0] == 0


async def test_a_worker_whose_engine_hangs_hands_over_and_leaves(world: World) -> None:
    await world.put_tasks(12)
    await world.start("a", hangs_after=60, stall_timeout=5.0)
    assert await world.ended("a") == 1, world.logs()
    assert "the engine hangs" in world.logs()
    moved = await finished_by_b(world)
    assert {one.progress.interruptions[0].reason for one in moved} <= {"leave", "stall"}
    assert await world.stop("b") == 0, world.logs()


@pytest.mark.parametrize("on_sync", ["republish", "in_flight", "drain"])
async def test_new_weights_in_the_middle_of_rollouts(world: World, on_sync: str) -> None:
    world.build(1)  # now: later the rollouts would not wait for it
    await world.put_tasks(30)
    for name in ("a", "b"):
        await world.start(name, creeps_after=MIDDLE, on_sync=on_sync)
    await world.collect(lambda: len(world.rollouts) >= 2)
    await world.publish_weights(1)
    await world.collect(lambda: world.logs().count("version 0 -> 1") == 2)
    world.hurry()
    await world.collect(lambda: not world.missing())
    check_content(world)
    assert not world.repeated()
    versions = [one.progress.tokens for one in world.rollouts]
    assert any(tokens.newest_version == 1 for tokens in versions)
    crossing = [
        one
        for one in world.rollouts
        if (one.progress.tokens.oldest_version, one.progress.tokens.newest_version) == (0, 1)
    ]
    cut = [one for one in world.rollouts if one.progress.interruptions]
    if on_sync == "republish":
        assert cut
        assert {c.reason for one in cut for c in one.progress.interruptions} == {"sync"}
    elif on_sync == "in_flight":
        assert crossing
        assert not cut
    else:
        assert not crossing
        assert not cut
    codes = [await world.stop(name) for name in ("a", "b")]
    assert codes == [0, 0], world.logs()


async def test_a_broker_that_dies_and_comes_back(
    tmp_path: Path, connect: Connect, killable_node: LocalBroker
) -> None:
    broker = await connect(app_id="test/world", url=killable_node.url, heartbeat_s=2)
    world = World(tmp_path, broker, killable_node.url, warm=True)
    try:
        await world.publish_weights(0)
        await world.put_tasks(24)
        for name in ("a", "b"):
            await world.start(name, creeps_after=MIDDLE)
        await world.collect(lambda: len(world.rollouts) >= 2)
        killable_node.kill()
        await asyncio.to_thread(killable_node.restart)
        world.hurry()
        await world.collect(lambda: not world.missing())
        check_content(world)
        contents = {
            (one.rollout_id, tuple(one.progress.tokens.token_ids)) for one in world.rollouts
        }
        assert len(contents) == 24
        codes = [await world.stop(name) for name in ("a", "b")]
        assert codes == [0, 0], world.logs()
    finally:
        await world.close()
