"""What happens when the broker or the way to it goes away."""

import asyncio
import contextlib
import math
import time
from collections import Counter

import pytest
from pika.exceptions import ChannelClosedByBroker

from infra.amqp.admin import Management
from infra.amqp.connection import Broker
from infra.amqp.errors import BrokerRefused, BrokerUnreachable, PublishTimeout, TopologyMismatch
from infra.amqp.local_broker import LocalBroker
from infra.amqp.message import Delivery
from infra.amqp.url import management_url, parse_url
from tests.broker_fixtures import Connect
from tests.integration.amqp.messages import outgoing
from tests.proxy import Proxy

pytestmark = pytest.mark.broker


def through(url: str, proxy: Proxy) -> str:
    """The URL by way of a proxy."""
    return url.replace(f":{parse_url(url).port}", f":{proxy.port}")


async def until(condition: object, timeout_s: float = 60.0) -> None:
    """Wait for a condition."""
    assert callable(condition)
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.02)


async def take_all(broker: Broker, queue: str) -> list[Delivery]:
    """Every ready message, acknowledged."""
    taken = []
    while (delivery := await broker.get(queue)) is not None:
        assert broker.ack(delivery)
        taken.append(delivery)
    return taken


@pytest.mark.timeout(240)
async def test_a_killed_broker_loses_nothing_that_was_confirmed(
    connect: Connect, killable_node: LocalBroker
) -> None:
    """Kill it with publishes in flight and a consumer at work, restart on the same folder."""
    broker = await connect(url=killable_node.url)
    confirmed: set[str] = set()
    received: Counter[str] = Counter()
    acked: set[str] = set()
    count = 3000

    async def publish(number: int) -> None:
        await broker.publish(outgoing("rollout", message_id=f"m{number}"))
        confirmed.add(f"m{number}")

    async def consume() -> None:
        async for delivery in broker.subscribe("rollouts", prefetch=32):
            received[delivery.envelope.message_id] += 1
            await asyncio.sleep(0)
            if broker.ack(delivery):
                acked.add(delivery.envelope.message_id)

    consumer = asyncio.create_task(consume())
    publishers = [asyncio.create_task(publish(i)) for i in range(count)]
    await until(lambda: len(confirmed) > 500)
    killable_node.kill()
    await until(lambda: not broker.connected)
    num_before = len(confirmed)
    assert num_before < count
    held_back = asyncio.create_task(broker.get("prompts"))
    await asyncio.to_thread(killable_node.restart, 120.0)
    await asyncio.gather(*publishers)
    await until(lambda: len(received) == count)
    while (await broker.depth("rollouts"))[0] > 0:
        await asyncio.sleep(0.05)
    assert await held_back is None
    assert set(received) == {f"m{i}" for i in range(count)} == confirmed
    assert broker.reconnects >= 3
    assert sum(received.values()) - count <= 512 + 200  # the publish window and recent acks
    consumer.cancel()
    await broker.close()
    checker = await connect(url=killable_node.url)
    left = {d.envelope.message_id for d in await take_all(checker, "rollouts")}
    assert left <= set(received)


async def test_a_cut_resends_what_was_unconfirmed_and_drops_stale_acks(
    connect: Connect, broker_url: str
) -> None:
    async with Proxy(parse_url(broker_url).port or 0) as proxy:
        broker = await connect(url=through(broker_url, proxy))
        await broker.publish(outgoing("prompt", b"held"))
        held = await broker.get("prompts")
        assert held is not None
        proxy.black_hole()
        sent = [
            asyncio.create_task(broker.publish(outgoing("rollout", message_id=f"m{i}")))
            for i in range(100)
        ]
        await until(lambda: broker.unconfirmed[0] == len(sent))
        assert broker.unconfirmed[1] < time.monotonic()
        assert not any(task.done() for task in sent)
        proxy.heal()
        proxy.cut()
        await asyncio.gather(*sent)
        assert broker.unconfirmed == (0, math.inf)
        await until(lambda: broker.connected)
        assert broker.reconnects >= 2
        assert not broker.held(held)
        assert not broker.ack(held)
        again = await broker.get("prompts")
        assert again is not None
        assert again.body == b"held"
        assert again.epoch > held.epoch
        assert broker.ack(again)
        ids = Counter(d.envelope.message_id for d in await take_all(broker, "rollouts"))
        assert set(ids) == {f"m{i}" for i in range(100)}
        assert await broker.get("prompts") is None


async def test_a_black_hole_is_noticed_by_heartbeats(connect: Connect, broker_url: str) -> None:
    async with Proxy(parse_url(broker_url).port or 0) as proxy:
        broker = await connect(url=through(broker_url, proxy), heartbeat_s=1)
        await broker.publish(outgoing("prompt", b"held"))
        held = await broker.get("prompts")
        assert held is not None
        proxy.black_hole()
        proxy.accepting = False
        with pytest.raises(PublishTimeout):
            await broker.publish(outgoing("rollout"), timeout_s=0.2)
        await until(lambda: not broker.held(held))
        proxy.heal()
        again = None
        async with asyncio.timeout(60):
            while again is None:
                again = await broker.get("prompts")
                await asyncio.sleep(0.05)
        assert again.body == b"held"
        assert broker.ack(again)


async def test_subscriptions_survive_cuts(connect: Connect, broker_url: str) -> None:
    async with Proxy(parse_url(broker_url).port or 0) as proxy:
        direct = await connect()
        broker = await connect(url=through(broker_url, proxy))
        work, control, events = (
            broker.subscribe("rollouts", prefetch=8),
            broker.control(),
            broker.events(),
        )
        for number in range(3):
            for subscription in (work, control, events):
                while subscription.num_bindings <= number:
                    await asyncio.sleep(0.01)
            await direct.publish(outgoing("rollout", b"%d" % number))
            await direct.publish(outgoing("", b"%d" % number, exchange="sync"))
            await direct.emit(outgoing("", b"%d" % number, exchange="events"))
            bodies = []
            while number not in bodies:  # the ack of the one before may have been cut off
                delivery = await anext(work)
                bodies.append(int(delivery.body))
                assert broker.ack(delivery)
            assert bodies in ([number], [number - 1, number])
            assert int((await anext(control)).body) == number
            assert int((await anext(events)).body) == number
            wanted = broker.reconnects + 3
            proxy.cut()
            await until(lambda wanted=wanted: broker.reconnects >= wanted)  # type: ignore[misc]


async def test_what_was_buffered_over_a_lost_connection_is_not_handed_out(
    connect: Connect, broker_url: str
) -> None:
    async with Proxy(parse_url(broker_url).port or 0) as proxy:
        broker = await connect(url=through(broker_url, proxy))
        await asyncio.gather(*(broker.publish(outgoing("rollout", b"%d" % i)) for i in range(10)))
        subscription = broker.subscribe("rollouts", prefetch=10)
        first = await anext(subscription)
        await asyncio.sleep(0.1)
        proxy.cut()
        await until(lambda: subscription.num_bindings == 2)
        seen = [await anext(subscription) for _ in range(10)]
        assert {int(d.body) for d in seen} == set(range(10))
        assert all(broker.ack(delivery) for delivery in seen)
        assert not broker.ack(first)


async def test_a_recording_is_read_on_from_where_the_cut_was(
    connect: Connect, broker_url: str
) -> None:
    async with Proxy(parse_url(broker_url).port or 0) as proxy:
        broker = await connect(url=through(broker_url, proxy))
        for number in range(20):
            await broker.publish(outgoing("rollout", b"%d" % number))
        recording = broker.subscribe("recording", prefetch=5)
        numbers = []
        for index in range(20):
            delivery = await anext(recording)
            numbers.append(int(delivery.body))
            broker.ack(delivery)
            if index == 7:
                proxy.cut()
                await until(lambda: recording.num_bindings == 2)
        assert sorted(set(numbers)) == numbers
        assert numbers[:8] == list(range(8))
        assert numbers[-1] == 19


async def test_a_deleted_queue_is_declared_again(
    connect: Connect, broker_url: str, run_name: str
) -> None:
    broker = await connect()
    subscription = broker.subscribe("rollouts", prefetch=1)
    await subscription.ready()
    management = Management(management_url(broker_url))
    await asyncio.to_thread(management.delete_queue, run_name, "rollouts")
    await until(lambda: subscription.num_bindings == 2)
    await broker.publish(outgoing("rollout", b"after"))
    assert (await anext(subscription)).body == b"after"


async def test_a_connection_closed_by_an_operator_comes_back(
    connect: Connect, spare_node: LocalBroker
) -> None:
    broker = await connect(url=spare_node.url)
    management = Management(management_url(spare_node.url))
    connections = []
    async with asyncio.timeout(30):
        while len(connections) < 3:
            connections = await asyncio.to_thread(management.connections)
            await asyncio.sleep(0.1)
    for connection in connections:
        await asyncio.to_thread(management.close_connection, str(connection["name"]))
    await until(lambda: broker.reconnects == 3 and broker.connected)
    await broker.publish(outgoing("prompt"))
    assert await broker.get("prompts") is not None


async def test_the_fence_is_taken_again_after_a_cut(connect: Connect, broker_url: str) -> None:
    async with Proxy(parse_url(broker_url).port or 0) as proxy:
        broker = await connect(url=through(broker_url, proxy), heartbeat_s=2)
        await broker.exclusive("trainer")
        proxy.cut()
        await until(lambda: broker.reconnects == 3 and broker.holds("trainer"))


async def test_nobody_answers(unused_tcp_port: int) -> None:
    broker = Broker(f"amqp://user:hunter2@127.0.0.1:{unused_tcp_port}/", run="run", app_id="test/0")
    with pytest.raises(BrokerUnreachable) as caught:
        await broker.start(timeout_s=0.5)
    assert caught.value.exit_code == 3
    assert f"127.0.0.1:{unused_tcp_port}" in str(caught.value)
    assert "Connection refused" in str(caught.value)
    assert "hunter2" not in str(caught.value)


async def test_a_wrong_password_is_not_tried_for_ever(broker_url: str) -> None:
    parts = parse_url(broker_url)
    broker = Broker(f"amqp://warren:wrong@127.0.0.1:{parts.port}/", run="run", app_id="test/0")
    async with asyncio.timeout(20):
        with pytest.raises(BrokerRefused, match="user or the password"):
            await broker.start()


async def test_a_missing_virtual_host_is_named(broker_url: str) -> None:
    broker = Broker(broker_url.replace("%2F", "nowhere"), run="run", app_id="test/0")
    async with asyncio.timeout(20):
        with pytest.raises(BrokerRefused, match="nowhere"):
            await broker.start()


async def test_a_queue_with_other_arguments_is_reported(
    connect: Connect, broker_url: str, run_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await connect()
    await first.close()
    monkeypatch.setattr("infra.amqp.topology.DELIVERY_LIMIT", 5)
    second = Broker(broker_url, run=run_name, app_id="test/0")
    with pytest.raises(TopologyMismatch, match="x-delivery-limit"):
        await second.start()


async def test_starting_before_the_broker_waits_for_it(
    connect: Connect, broker_url: str, run_name: str
) -> None:
    async with Proxy(parse_url(broker_url).port or 0) as proxy:
        proxy.accepting = False
        starting = asyncio.create_task(connect(url=through(broker_url, proxy)))
        await until(lambda: proxy.num_accepted > 3)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(starting), 0.1)
        assert not starting.done()
        proxy.accepting = True
        broker = await starting
        await broker.publish(outgoing("prompt"))


async def no_stream(*_: object) -> None:
    """How a broker answers that has lost a stream."""
    raise ChannelClosedByBroker(404, "NOT_FOUND - no process for the stream")


@pytest.mark.timeout(240)
async def test_a_stream_that_never_comes_back_stops_nobody(
    connect: Connect, killable_node: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What RabbitMQ 3.10 does when it is killed just after its first stream was created."""
    monkeypatch.setattr("infra.amqp.declare.RECORDING_PATIENCE_S", 1.0)
    broker = await connect(url=killable_node.url)
    await broker.publish(outgoing("prompt", b"kept"))
    killable_node.kill()
    if broker.version >= (4, 2, 0):  # there the register holds the queues' metadata, too
        monkeypatch.setattr("infra.amqp.declare.Topology._record", no_stream)
    for register in killable_node.folder.glob("mnesia/*/coordination/*/names.dets"):
        if broker.version < (4, 2, 0):
            register.unlink()
    await until(lambda: not broker.connected)
    await asyncio.to_thread(killable_node.restart, 120.0)
    await broker.publish(outgoing("prompt", b"new"))
    bodies = [d.body for d in await take_all(broker, "prompts")]
    assert bodies == [b"kept", b"new"]
