"""What the faults are given: processes that run."""

import json
from pathlib import Path
from typing import Any

import pytest

from infra.runs.folder import RunFolder
from infra.storm import world as module
from infra.storm.watch import Watch
from infra.storm.world import World


async def test_a_killed_process_is_not_killed_again_before_another_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of processes is a moment old: it still names the dead one, which lies as a zombie
    until its parent looks. Killing that would count for a kill."""
    monkeypatch.setattr(module, "_APPEAR_S", 0.05)
    folder = RunFolder(tmp_path)
    nothing: Any = None
    world = World(
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
    assert await world.pid_of("trainer") == 0
    folder.fleet.write_text(json.dumps({"trainer": 7, "rollout-1": 9}))
    assert await world.pid_of("trainer") == 7
    world.ended["trainer"] = 7
    assert await world.pid_of("trainer") == 0
    assert await world.pid_of("rollout-1") == 9
    folder.fleet.write_text(json.dumps({"trainer": 8}))
    assert await world.pid_of("trainer") == 8
