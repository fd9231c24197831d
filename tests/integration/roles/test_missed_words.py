"""What was said while a role could not hear: it learns the state, whatever events it missed."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from infra.amqp.codec import encode
from infra.amqp.connection import Broker
from infra.amqp.message import Outgoing
from schemas.control import Heartbeat, RunState, Wanted
from tests.broker_fixtures import Connect
from tests.integration.roles.toy_run import start, write_recipe
from tests.proxy import Proxy

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]


async def say(broker: Broker, state: RunState) -> None:
    envelope, body = encode(state, app_id="test/0", correlation_id="x", headers={"run_id": "a"})
    await broker.publish(Outgoing(exchange="sync", routing_key="", envelope=envelope, body=body))


async def test_missed_resume(
    tmp_path: Path, run_name: str, broker_url: str, connect: Connect
) -> None:
    """Paused, then cut off while the trainer resumes: the repeated `RunState` sets it going."""
    broker = await connect()
    beats = broker.events()

    async def beat(accept: Callable[[Heartbeat], bool] = lambda _: True) -> Heartbeat:
        async with asyncio.timeout(120):
            while True:
                heard = Heartbeat.model_validate_json((await anext(beats)).body)
                if accept(heard):
                    return heard

    port = urlsplit(broker_url).port
    assert port is not None
    async with Proxy(port) as proxy:
        url = broker_url.replace(f":{port}", f":{proxy.port}")
        recipe = write_recipe(tmp_path, run_name)
        role = start(tmp_path, "rollout", str(recipe), "--name", "w1", url=url)
        await beat()
        paused = RunState(run_id="a", number=1, wanted=Wanted.PAUSED)
        await say(broker, paused)
        await beat(lambda heard: heard.state == "paused")

        proxy.accepting = False
        proxy.cut()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(3):
                while True:
                    await anext(beats)
        resumed = RunState(run_id="a", number=2, wanted=Wanted.RUNNING)
        await say(broker, resumed)
        proxy.heal()
        assert (await beat()).state == "paused"
        async with asyncio.timeout(120):
            while (await beat()).state != "running":
                await say(broker, resumed)
        await say(broker, paused)
        assert [(await beat()).state for _ in range(2)] == ["running"] * 2

        await say(broker, RunState(run_id="a", number=3, wanted=Wanted.STOPPED))
        output, _ = await asyncio.to_thread(role.communicate, timeout=120)
    assert role.returncode == 0, output
