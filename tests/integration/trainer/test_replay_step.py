"""`run.py replay step` on a real trainer's journal: beside the living one, and after several."""

import asyncio
import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import pytest

from consumers.trainer.replay.command import add_arguments, run
from infra.runs.folder import RunFolder
from schemas.journal import Opened, Stepped
from tests.factories.world import World, working
from tests.integration.trainer.books import records_of

pytestmark = pytest.mark.broker


async def replay(recipe: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """What it says, with the exit code."""
    parser = ArgumentParser()
    add_arguments(parser)
    options = parser.parse_args([*words, "--run", str(recipe), "--json"])
    code = await asyncio.to_thread(run, options)
    return {**json.loads(capsys.readouterr().out), "code": code}


@pytest.mark.timeout(300)
async def test_every_step_of_several_trainers_is_replayed_bit_for_bit(
    recipe, spawn, connect, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two were killed, and the third goes on while its predecessors' steps are replayed."""
    config = recipe(run={"steps": 4000}, checkpoint={"every": 3, "keep": 3})
    async with working(World(await connect(app_id="world/0"), delay_s=0.02)) as world:
        child = spawn(config)
        for version in (2, 4):
            await world.until(lambda version=version: world.version >= version, 100)
            child.kill()
            child.wait()
            child = spawn(config, resume=True)
        version = world.version
        await world.until(lambda: world.version >= version + 2, 100)
        alive = await replay(tmp_path / "recipe.json", capsys, "2-4")
        assert (alive["code"], alive["equal"]) == (0, True)
        version = world.version
        await world.until(lambda: world.version > version, 100)
        child.terminate()
        assert await asyncio.to_thread(child.wait, 60) == 0
    check_steps(config, await replay(tmp_path / "recipe.json", capsys, "all"))


def check_steps(config, said: dict[str, Any]) -> None:
    """All were replayed, from the start, as they were recorded; nothing else was written."""
    records = records_of(config)
    recorded = {record.step: record for record in records if isinstance(record, Stepped)}
    assert sum(isinstance(record, Opened) for record in records) == 3
    assert [step["step"] for step in said["steps"]] == sorted(recorded)
    assert (said["code"], said["base"], said["notes"]) == (0, "the starting model", [])
    for step in said["steps"]:
        record = recorded[step["step"]]
        assert step["bitwise"] and record.ran_on is not None
        assert step["replayed"]["loss"] == record.loss
        assert step["replayed"]["weights_sha256"] == record.weights_sha256
    newest = RunFolder.of(config).incarnations
    assert max(int(path.name) for path in newest.iterdir() if path.name.isdigit()) == 3
