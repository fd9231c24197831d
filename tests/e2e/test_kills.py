"""Roles started by hand are killed, told to leave and joined by others: nothing is lost or doubled.

A reward that waits for a gate keeps the run from ending before everything has happened.
"""

import signal
from pathlib import Path

import pytest

from tests.e2e.plugs import FREE_STEPS
from tests.e2e.runs import Running, RunRecord, eventually, finish, start, write_recipe

pytestmark = [pytest.mark.broker, pytest.mark.timeout(400)]
STEPS = 8


def kill(*victims: Running) -> None:
    """SIGKILL, as a power cut would."""
    for victim in victims:
        victim.process.kill()
    assert [victim.exit_code() for victim in victims] == [-signal.SIGKILL] * len(victims)


def test_whatever_is_killed_every_group_ends_once(tmp_path: Path, untaught_folder: Path) -> None:
    recipe = str(
        write_recipe(
            tmp_path,
            "kills",
            model=untaught_folder,
            steps=STEPS,
            reward="tests.e2e.plugs:gated",
            reward_timeout=300,
        )
    )
    gate, record = tmp_path / "gate", RunRecord(tmp_path / "runs" / "kills")

    def role(command: str, *arguments: str) -> Running:
        return start(tmp_path, command, recipe, *arguments, gate=gate)

    broker = role("broker")
    eventually(lambda: broker.says("serving amqp://"), "the broker's start")
    trainer, producer, reward = role("trainer"), role("producer"), role("reward")
    first, second = role("rollout", "--name", "first"), role("rollout", "--name", "second")
    eventually(lambda: record.num_steps() >= FREE_STEPS, "the first steps")

    kill(first, reward, producer, trainer)
    late = role("rollout", "--name", "late")
    trainer = role("trainer", "--resume")
    producer, reward = role("producer"), role("reward")
    eventually(lambda: trainer.says("trainer incarnation 2"), "the trainer's return")
    eventually(lambda: late.says("serving version"), "the late worker's start")

    second.process.terminate()
    assert second.exit_code() == 0, second.output()
    assert second.says("SIGTERM: handing over and leaving")

    kill(broker)
    broker = role("broker")
    eventually(lambda: broker.says("serving amqp://"), "the broker's return")
    gate.touch()  # whoever is still cut off when the run is over hears of it all the same

    for running in (trainer, producer, reward, late):
        assert running.exit_code() == 0, running.output()
    broker.process.send_signal(signal.SIGINT)
    assert broker.exit_code() == 0, broker.output()
    record.check_whole(steps=STEPS)
    code, replayed = finish(tmp_path, "replay", "rollout", "all", "--run", recipe)
    assert code == 0, replayed
    assert "resumed by another worker" in replayed
