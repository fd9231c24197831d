"""The private broker of a running `up` is killed: it comes back, the roles too, the run completes.

While the run stands still, a second trainer, a second `up` and a `--purge` are turned away.
"""

import os
import signal
from pathlib import Path

import pytest

from tests.e2e.plugs import FREE_STEPS
from tests.e2e.runs import RunRecord, eventually, start, write_recipe

pytestmark = [pytest.mark.broker, pytest.mark.timeout(400)]
STEPS = 6


def test_a_broker_that_is_killed_comes_back_and_the_run_completes(
    tmp_path: Path, untaught_folder: Path
) -> None:
    recipe = write_recipe(
        tmp_path,
        "outage",
        model=untaught_folder,
        steps=STEPS,
        reward="tests.e2e.plugs:gated",
        reward_timeout=300,
    )
    gate = tmp_path / "gate"
    up = start(tmp_path, "up", str(recipe), gate=gate)
    record = RunRecord(tmp_path / "runs" / "outage")
    eventually(lambda: record.num_steps() >= FREE_STEPS, "the first steps")

    second = start(tmp_path, "trainer", str(recipe))
    ups = [
        start(tmp_path, "up", str(recipe), *flags) for flags in ((), ("--purge",), ("--resume",))
    ]
    assert second.exit_code() == 1
    assert second.says("another trainer of run 'outage' lives: it (trainer/trainer) was just heard")
    assert second.says("-> stop it first, or give this run another run.name")
    for one in ups:
        assert one.exit_code() == 2
        assert one.says(f"is in use: another 'up' (process {up.pid}) runs it")
        assert not one.says("Traceback")

    os.kill(record.broker_pid(), signal.SIGKILL)
    eventually(lambda: up.says("the private broker serves again"), "the broker's return")
    gate.touch()
    assert up.exit_code() == 0, up.output()
    assert "the private broker has ended; starting it again on its data" in up.output()
    record.check_whole(steps=STEPS)
