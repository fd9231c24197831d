"""`run.py dead` against a real broker: nothing is lost by looking, nor by SIGKILL at any point."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from infra.amqp.codec import decode, encode
from infra.amqp.connection import Broker
from infra.amqp.dead import give_up, original_message
from infra.amqp.message import Delivery, Outgoing
from infra.roles.command.dead import drop as dropping
from infra.roles.command.dead.desk import Choice, browse
from infra.roles.command.dead.letter import Letter
from schemas.headers import Headers
from schemas.work import Failure, FailureKind, Requeue
from tests.broker_fixtures import Connect
from tests.factories.messages import model_for
from tests.integration.roles.toy_run import write_recipe

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]
ROOT = Path(__file__).resolve().parents[3]
KILLED = """
import os, signal, sys
from pathlib import Path
from infra.amqp.connection import Broker
from infra.roles.command.cli import main
from infra.roles.command.dead import {module} as verb
import run
def kill(*_): os.kill(os.getpid(), signal.SIGKILL)
{where} = kill
main(sys.argv[1:], roles=run.ROLES, tools=run.TOOLS, entry=Path(run.__file__))
"""
"""The front door, killed where a function of it is called."""


class Desk:
    """Calls `run.py dead` as an operator does."""

    def __init__(self, folder: Path, run_name: str, url: str) -> None:
        self._recipe = str(write_recipe(folder, run_name))
        self._environment = {**os.environ, "WARREN_BROKER_URL": url}

    async def _run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return await asyncio.to_thread(
            subprocess.run,
            [sys.executable, *words, "--run", self._recipe],
            cwd=ROOT,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=120,
        )

    async def __call__(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return await self._run("run.py", "dead", *words)

    async def ids(self) -> list[str]:
        done = await self("list", "--json")
        assert done.returncode == 0, done.stderr
        return [letter["id"] for letter in json.loads(done.stdout)]

    async def killed(self, where: str, *words: str) -> None:
        code = KILLED.format(module=words[0], where=where)
        done = await self._run("-c", code, "dead", *words)
        assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.fixture
async def broker(connect: Connect) -> Broker:
    return await connect(app_id="reward/r")


@pytest.fixture
def desk(tmp_path: Path, run_name: str, broker_url: str) -> Desk:
    return Desk(tmp_path, run_name, broker_url)


async def die(broker: Broker, index: int, **changes: Any) -> None:
    """A rollout of group 3 is given up by the reward worker."""
    headers = Headers(run_id="a", group=3, index=index, rollout_id=f"3.{index}", data_attempts=3)
    envelope, body = encode(
        model_for("rollouts", 3, index),
        app_id=broker.app_id,
        correlation_id=headers.rollout_id,
        headers=headers.to_amqp(),
        message_id=f"Rollout:3.{index}",
    )
    await broker.publish(
        Outgoing(exchange="work", routing_key="rollout", envelope=envelope, body=body)
    )
    while (delivery := await broker.get("rollouts")) is None:
        await asyncio.sleep(0.01)
    failure = Failure(stage="reward", kind=FailureKind.DATA, error=f"boom {index}")
    original = original_message(delivery).model_copy(update=changes)
    await give_up(broker, delivery, failure.model_copy(update={"original": original}))


async def wishes(broker: Broker) -> list[Requeue]:
    """What the trainer would take from `failures`."""
    count, _ = await broker.depth("failures")
    taken = await broker.take("failures", limit=count)
    for delivery in taken:
        broker.ack(delivery)
    return [decode(d, d.body, Requeue) for d in taken if d.envelope.type == Requeue.__name__]


async def test_whoever_looks_is_killed_and_nothing_is_lost(broker: Broker, desk: Desk) -> None:
    for index in range(4):
        await die(broker, index)
    ids = [f"Rollout:3.{index}.dead" for index in range(4)]
    assert sorted(await desk.ids()) == ids
    await desk.killed("verb.without_bodies", "list")
    await desk.killed("verb.page", "show", "3.2")
    assert sorted(await desk.ids()) == ids
    shown = await desk("show", "3.2")
    assert shown.returncode == 0 and "boom 2" in shown.stdout and "boom 1" not in shown.stdout

    assert (await desk("drop", "--all")).returncode == 2
    await desk.killed("Broker.ack", "drop", "--all", "--yes")
    assert sorted(await desk.ids()) == ids
    dropped = await desk("drop", "--reason", "BOOM 1", "--yes")
    assert dropped.returncode == 0, dropped.stderr
    assert (await desk("drop", "3.0")).returncode == 0
    assert sorted(await desk.ids()) == ids[2:]
    unknown = await desk("drop", "3.0")
    assert unknown.returncode == 2 and "no dead letter 3.0" in unknown.stderr


async def test_a_letter_is_there_or_wished_back_wherever_the_tool_is_killed(
    broker: Broker, desk: Desk
) -> None:
    for index in range(3):
        await die(broker, index)
    await die(broker, 3, truncated=True)
    await wishes(broker)
    await desk.killed("Broker.publish", "requeue", "3.0")
    assert len(await desk.ids()) == 4 and await wishes(broker) == []
    await desk.killed("Broker.ack", "requeue", "3.0")
    assert len(await desk.ids()) == 4
    assert [wish.letter for wish in await wishes(broker)] == ["Rollout:3.0.dead"]

    done = await desk("requeue", "--all")
    assert done.returncode == 1, done.stderr
    assert "3 requeued, 1 refused" in done.stdout
    assert "only the beginning of the message" in done.stdout
    assert "no trainer is heard" in done.stdout
    assert await desk.ids() == ["Rollout:3.3.dead"]
    found = await wishes(broker)
    assert sorted(wish.letter for wish in found) == [f"Rollout:3.{n}.dead" for n in range(3)]
    assert all("data_attempts" not in wish.original.headers for wish in found)


async def test_what_a_lost_connection_gave_back_was_not_dropped(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index in range(3):
        await die(broker, index)
    operator = await connect(app_id="operator/o")

    async def cut(_broker: Broker, choice: Choice) -> AsyncIterator[tuple[Letter, Delivery]]:
        """Between the first letter and the second."""
        number = 0
        async for letter, delivery in browse(_broker, choice):
            if number == 1:
                operator._post(operator._consume.drop, "cut by the test")
                async with asyncio.timeout(30.0):
                    while operator.held(delivery):
                        await asyncio.sleep(0.01)
            number += 1
            yield letter, delivery

    monkeypatch.setattr(dropping, "browse", cut)
    outcome = await dropping.drop(operator, Choice(), sure=True)
    assert (len(outcome.dropped), len(outcome.kept), outcome.cut) == (1, 2, True)
    left: set[str] = set()
    async with asyncio.timeout(30.0):
        while not left >= {*outcome.kept}:
            left |= {d.envelope.message_id for d in await broker.take("dead_letters", limit=3)}
