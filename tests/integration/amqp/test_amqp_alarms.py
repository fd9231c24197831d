"""A memory alarm at the broker: publishers wait, visibly; everything else goes on."""

import asyncio
import subprocess

import pytest

from infra.amqp.admin import Management
from infra.amqp.local_broker import LocalBroker
from infra.amqp.node.config import server_environment
from infra.amqp.url import management_url
from tests.broker_fixtures import Connect
from tests.integration.amqp.messages import outgoing

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]


def set_memory_limit(node: LocalBroker, limit: str) -> None:
    """With RabbitMQ's own tool."""
    assert node._install is not None
    assert node.ports is not None
    subprocess.run(
        [
            str(node._install.server.with_name("rabbitmqctl")),
            "set_vm_memory_high_watermark",
            "absolute",
            limit,
        ],
        env=server_environment(node.folder, node._install, node.ports),
        check=True,
        capture_output=True,
        timeout=100,
    )


async def test_an_alarm_holds_publishers_and_nobody_else(
    connect: Connect, killable_node: LocalBroker
) -> None:
    broker = await connect(url=killable_node.url)
    await asyncio.gather(*(broker.publish(outgoing("prompt", b"%d" % i)) for i in range(3)))
    held = await broker.get("prompts")
    assert held is not None
    await asyncio.to_thread(set_memory_limit, killable_node, "1MB")
    management = Management(management_url(killable_node.url))
    async with asyncio.timeout(60):
        while not await asyncio.to_thread(management.alarms):
            await asyncio.sleep(0.1)
        waiting = [asyncio.create_task(broker.publish(outgoing("rollout"))) for _ in range(5)]
        while not broker.blocked:
            await asyncio.sleep(0.02)
    assert broker.ack(held)
    taken = await broker.get("prompts")
    assert taken is not None
    assert broker.connected
    assert not any(task.done() for task in waiting)
    await asyncio.to_thread(set_memory_limit, killable_node, "2GB")
    async with asyncio.timeout(60):
        await asyncio.gather(*waiting)
    assert not broker.blocked
    assert await broker.depth("rollouts") == (5, 0)
    assert broker.reconnects == 0
