"""`run.py control` on a real broker, where roles of two runs of one name are heard."""

import asyncio
from pathlib import Path

import pytest

from infra.amqp.codec import decode, encode
from infra.amqp.connection import Broker
from infra.amqp.message import Outgoing
from infra.roles.command.control import tell
from infra.roles.command.target import Target
from infra.roles.settings import load_config
from infra.runs.folder import RunFolder
from schemas.base import Message
from schemas.control import Command, CommandAck, Heartbeat
from tests.broker_fixtures import Connect
from tests.integration.roles.toy_run import write_recipe

pytestmark = [pytest.mark.broker, pytest.mark.timeout(120)]


async def emit(broker: Broker, message: Message) -> None:
    envelope, body = encode(message, app_id="test/0", correlation_id="x", headers={})
    await broker.emit(Outgoing(exchange="events", routing_key="x", envelope=envelope, body=body))


async def roles(broker: Broker) -> None:
    """A rollout worker that a purged run left behind, and the new run's trainer."""
    while True:
        for run_id, role in (("old", "rollout"), ("new", "trainer")):
            await emit(
                broker,
                Heartbeat(run_id=run_id, role=role, worker="w", host="h", pid=1, state="running"),
            )
        await asyncio.sleep(0.1)


async def trainer(broker: Broker, heard: list[Command]) -> None:
    """Does what it is told at once."""
    async for delivery in broker.control():
        command = decode(delivery, delivery.body, Command)
        heard.append(command)
        who = {"run_id": "new", "role": "trainer", "worker": "w", "host": "h", "done": True}
        told = {"verb": command.verb, "number": command.number, "by": command.by}
        await emit(broker, CommandAck.model_validate(who | told))


async def test_the_run_whose_trainer_is_heard_is_meant_and_nobody_else_waited_for(
    tmp_path: Path, run_name: str, connect: Connect
) -> None:
    world, operator = await connect(app_id="world/0"), await connect(app_id="operator/ana")
    config = load_config(write_recipe(tmp_path, run_name))
    heard: list[Command] = []
    told: list[str] = []
    tasks = [asyncio.create_task(one) for one in (roles(world), trainer(world, heard))]
    try:
        command = Command(run_id="", verb="pause", number=1, by="ana")
        found = Target(config, RunFolder(tmp_path / "no such run"))
        roll = await tell(operator, found, command, 60.0, told.append)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert roll.complete and list(roll.roles) == ["trainer/w"]
    assert {command.run_id for command in heard} == {"new"}
    assert told == ["  trainer/w on h done"]
