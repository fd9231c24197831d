"""Worker processes that join a chain of deltas, follow it, and meet what is wrong with it."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.broker_fixtures import Connect
from tests.integration.rollout.rollout_world import World

pytestmark = [pytest.mark.broker, pytest.mark.timeout(400)]


def some(name: str) -> bool:
    """The parameters that a nudge moves."""
    return "layers.1" in name or "norm" in name


@pytest.fixture
async def world(tmp_path: Path, connect: Connect, broker_url: str) -> AsyncIterator[World]:
    made = World(tmp_path, await connect(app_id="test/world"), broker_url, warm=True)
    made.sections["weights"] = {"cache": str(tmp_path / "cache")}
    await made.publish_weights(0)
    yield made
    await made.close()


async def follow(world: World, *versions: int, keyframe: bool = False) -> None:
    """Publish versions that differ a little from one to the next."""
    for version in versions:
        world.nudge(version, some)
        published = await world.publish_weights(version, keyframe=keyframe)
        assert bool(published.full) == keyframe
        assert published.delta


async def said(world: World, words: str) -> None:
    """Wait until a worker logs it."""
    async with asyncio.timeout(120):
        while words not in world.logs():
            await asyncio.sleep(0.05)


def check(world: World) -> None:
    assert not world.failures, world.failures
    for rollout in world.rollouts:
        assert not world.wrong_tokens(rollout), (rollout.rollout_id, world.logs())


async def test_a_worker_joins_in_the_middle_and_follows_the_chain(world: World) -> None:
    await follow(world, 1, 2)
    await follow(world, 3, keyframe=True)
    await follow(world, 4, 5)
    await world.put_tasks(12)
    await world.start("a")
    await said(world, "serving version 5")
    assert "from keyframe 3, and 2 deltas" in world.logs()
    await world.collect(lambda: len(world.rollouts) >= 2)
    await follow(world, 6)
    await said(world, "version 5 -> 6")
    await world.put_tasks(6)
    await world.collect(lambda: not world.missing())
    check(world)
    newest = {one.progress.tokens.newest_version for one in world.rollouts}
    assert newest <= {5, 6}
    assert 6 in newest
    assert await world.stop("a") == 0, world.logs()
    assert list((world.folder / "cache").iterdir()) == [], "it leaves nothing behind"


async def test_a_damaged_delta_is_passed_over_until_a_keyframe_comes(world: World) -> None:
    await world.start("a")
    await said(world, "serving version 0")
    world.nudge(1, some)
    published = await world.publish_weights(1, keyframe=False, told=False)
    world.damage(1)
    await world.tell(published)
    await said(world, "version 0 serves on")
    await follow(world, 2)
    await said(world, "version 2 cannot be made")
    await world.put_tasks(4)
    await world.collect(lambda: len(world.rollouts) == 4)
    assert {one.progress.tokens.newest_version for one in world.rollouts} == {0}
    await follow(world, 3, keyframe=True)
    await said(world, "version 0 -> 3")
    await world.put_tasks(4)
    await world.collect(lambda: not world.missing())
    check(world)
    assert world.rollouts[-1].progress.tokens.newest_version == 3
    assert await world.stop("a") == 0, world.logs()


async def test_what_a_killed_worker_kept_the_next_one_removes(world: World) -> None:
    cache = world.folder / "cache"
    await world.start("a")
    await said(world, "serving version 0")
    (left,) = (path for path in cache.iterdir() if path.is_dir())
    await world.stop("a", signal.SIGKILL)
    assert left.is_dir()
    await world.start("b")
    async with asyncio.timeout(120):
        while left.exists():
            await asyncio.sleep(0.05)
    await world.put_tasks(4)
    await world.collect(lambda: not world.missing())
    check(world)
    assert await world.stop("b") == 0, world.logs()
    assert list(cache.iterdir()) == []
