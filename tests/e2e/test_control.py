"""`run.py control` on roles started by hand: everybody answers, and does what it is told."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from schemas.journal import Stepped
from tests.e2e.plugs import FREE_STEPS
from tests.e2e.runs import Running, RunRecord, eventually, finish, start, write_recipe

pytestmark = [pytest.mark.broker, pytest.mark.timeout(500)]
STEPS = 400
"""More than are done before the stop."""


@pytest.fixture
def recipe(tmp_path: Path, untaught_folder: Path) -> str:
    """Of a run that stands still behind its first groups until there is a gate."""
    path = write_recipe(
        tmp_path,
        "steered",
        model=untaught_folder,
        steps=STEPS,
        reward="tests.e2e.plugs:gated",
        reward_timeout=300,
    )
    return str(path)


def control(folder: Path, recipe: str, verb: str, *more: str) -> tuple[int, dict[str, Any]]:
    """The exit code, and what is said of each role."""
    code, output = finish(folder, "control", verb, "--run", recipe, "--json", *more)
    told: dict[str, Any] = json.loads(output.splitlines()[0])
    return code, {f"{one['role']}/{one['worker']}": one for one in told["roles"]}


def test_pause_drain_resume_and_stop(tmp_path: Path, recipe: str) -> None:
    gate, record = tmp_path / "gate", RunRecord(tmp_path / "runs" / "steered")

    def role(command: str, *arguments: str) -> Running:
        return start(tmp_path, command, recipe, *arguments, gate=gate)

    assert finish(tmp_path, "control", "pause", "--run", recipe)[0] == 3
    broker = role("broker")
    eventually(lambda: broker.says("serving amqp://"), "the broker's start")
    where = record.root / "broker"
    eventually(lambda: broker.says(f"user and password: {where / 'monitoring.json'}"), "the rest")
    assert f"its url with the password is in {where / 'url'}" in broker.output()
    secrets = [(where / "url").read_text().split(":")[2].split("@")[0]]
    secrets.append(json.loads((where / "monitoring.json").read_text())["password"])
    assert not any(secret in broker.output() for secret in secrets)
    assert finish(tmp_path, "control", "pause", "--run", recipe, "--timeout", "1")[0] == 5
    trainer, producer = role("trainer", "--name", "t"), role("producer", "--name", "p")
    reward, rollout = role("reward", "--name", "s"), role("rollout", "--name", "r")
    eventually(lambda: record.num_steps() >= FREE_STEPS, "the first steps")

    # the reward hangs at its gate: what it has begun it may finish, if paused, and has to, if not
    code, roles = control(tmp_path, recipe, "pause")
    assert code == 0, roles
    assert set(roles) == {"trainer/t", "producer/p", "reward/s", "rollout/r"}
    code, roles = control(tmp_path, recipe, "drain", "--timeout", "8")
    assert code == 5
    assert [name for name, one in roles.items() if one["state"] != "done"] == ["reward/s"]
    assert roles["rollout/r"]["detail"] == "everything handed over"

    trainer.process.kill()
    assert trainer.exit_code() == -signal.SIGKILL
    late = role("reward", "--name", "late")
    trainer = role("trainer", "--name", "t", "--resume")
    eventually(lambda: trainer.says("the run is draining by"), "the trainer to remember")
    eventually(lambda: late.says("the operator to let the run go on"), "the late one to wait")
    steps = sum(isinstance(entry, Stepped) for entry in record.records())
    gate.touch()
    code, roles = control(tmp_path, recipe, "drain")
    assert (code, len(roles)) == (0, 5), roles
    assert sum(isinstance(entry, Stepped) for entry in record.records()) == steps

    code, roles = control(tmp_path, recipe, "resume")
    assert code == 0, roles
    eventually(lambda: record.num_steps() > FREE_STEPS, "the next step")
    code, roles = control(tmp_path, recipe, "stop")
    assert code == 0, roles
    for running in (trainer, producer, reward, rollout, late):
        assert running.exit_code() == 0, running.output()
    broker.process.send_signal(signal.SIGINT)
    assert broker.exit_code() == 0, broker.output()
    assert FREE_STEPS < record.num_steps() < STEPS
    assert finish(tmp_path, "ledger", recipe)[0] == 0
