"""`up` alone: every role is killed under it, and the run completes as if nothing had been."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.e2e.plugs import FREE_STEPS
from tests.e2e.runs import RunRecord, eventually, start, write_recipe

pytestmark = [pytest.mark.broker, pytest.mark.timeout(400)]
STEPS = 6


def test_every_role_is_killed_once_and_the_run_completes(
    tmp_path: Path, untaught_folder: Path
) -> None:
    recipe = write_recipe(
        tmp_path,
        "killed",
        model=untaught_folder,
        steps=STEPS,
        reward="tests.e2e.plugs:gated",
        reward_timeout=300,
    )
    gate, record = tmp_path / "gate", RunRecord(tmp_path / "runs" / "killed")
    up = start(tmp_path, "up", str(recipe), "supervise.backoff=0.2", gate=gate)
    eventually(lambda: record.num_steps() >= FREE_STEPS, "the first steps")

    def fleet() -> dict[str, int]:
        found: dict[str, int] = json.loads((record.root / "fleet.json").read_text())
        return found

    before = fleet()
    victims = ("trainer", "producer-1", "rollout-1", "reward-1")
    for name in victims:
        os.kill(before[name], signal.SIGKILL)
    eventually(lambda: len(fleet()) == len(before) and fleet() != before, "the restarts")
    gate.touch()
    assert up.exit_code() == 0, up.output()

    for name in victims:
        assert f"{name} died (killed by SIGKILL); starting it again in 0.2 s" in up.output()
        assert up.says(f"{name} runs again")
    assert up.output().count("starting it again") == len(victims)
    assert not (record.root / "fleet.json").exists()
    record.check_whole(steps=STEPS)
