"""What the faults are given: processes that run."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from infra.runs.folder import RunFolder
from infra.storm import world as module
from infra.storm.watch import Watch
from infra.storm.world import World


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A world of a run folder and nothing else, without patience."""
    monkeypatch.setattr(module, "_APPEAR_S", 0.05)
    monkeypatch.setattr(module, "RECOVERY_TIMEOUT_S", 0.05)
    folder = RunFolder(tmp_path)
    nothing: Any = None
    return World(
        config=nothing,
        folder=folder,
        entry=tmp_path,
        own=tmp_path,
        node=nothing,
        proxy=nothing,
        roles_url="",
        hostile=nothing,
        watch=Watch(nothing, folder),
        processes=("trainer",),
        queues=(),
    )


async def test_a_killed_process_is_not_killed_again_before_another_runs(world: World) -> None:
    """The list of processes is a moment old: it still names the dead one, which lies as a zombie
    until its parent looks. Killing that would count for a kill."""
    fleet = world.folder.fleet
    assert await world.pid_of("trainer") == 0
    fleet.write_text(json.dumps({"trainer": 7, "rollout-1": 9}))
    assert await world.pid_of("trainer") == 7
    world.ended["trainer"] = 7
    assert await world.pid_of("trainer") == 0
    assert await world.pid_of("rollout-1") == 9
    fleet.write_text(json.dumps({"trainer": 8}))
    assert await world.pid_of("trainer") == 8


async def test_a_trainer_is_hit_twice_before_it_steps_and_then_after_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RECOVERY_TIMEOUT_S", 60.0)
    metrics = world.folder.metrics
    metrics.write_text('{"kind": "step", "step": 4}\n')
    await world.spare_trainer()
    await world.spare_trainer()
    third = asyncio.create_task(world.spare_trainer())
    await asyncio.sleep(0.3)
    assert not third.done()
    with metrics.open("a") as file:
        file.write('{"kind": "step", "step": 5}\n')
    await third
    assert world.trainer_hits == [4, 4, 5]
