"""Publishing, getting, subscribing and acknowledging at a real broker."""

import asyncio
import contextlib

import pika
import pytest

from infra.amqp.connection import Broker
from infra.amqp.errors import (
    BadMessage,
    BrokerClosed,
    MessageTooLarge,
    QueueMissing,
    ResourceLocked,
    Unroutable,
)
from infra.amqp.message import MAX_BODY_BYTES
from infra.amqp.topology import WORK_KEYS, full_name
from tests.broker_fixtures import Connect
from tests.integration.amqp.messages import outgoing

pytestmark = pytest.mark.broker


@pytest.mark.parametrize(("queue", "key"), WORK_KEYS.items())
async def test_each_key_reaches_its_queue_with_its_envelope(
    connect: Connect, queue: str, key: str
) -> None:
    broker = await connect()
    sent = outgoing(key, b"\x00\xff")
    await broker.publish(sent)
    delivery = await broker.get(queue)
    assert delivery is not None
    assert delivery.body == b"\x00\xff"
    assert delivery.queue == queue
    envelope = delivery.envelope
    assert {k: envelope.headers[k] for k in sent.envelope.headers} == sent.envelope.headers
    for name in ("message_id", "type", "correlation_id", "app_id", "timestamp", "content_encoding"):
        assert getattr(envelope, name) == getattr(sent.envelope, name)
    assert not delivery.redelivered
    assert delivery.delivery_count == 0
    assert broker.held(delivery)
    assert broker.ack(delivery)
    assert not broker.held(delivery)
    assert not broker.ack(delivery)
    assert await broker.get(queue) is None


async def test_an_unacknowledged_message_returns_when_its_holder_leaves(connect: Connect) -> None:
    first, second = await connect(), await connect()
    await first.publish(outgoing("prompt", b"mine"))
    assert await first.get("prompts") is not None
    assert await second.get("prompts") is None
    await first.close()
    returned = await second.get("prompts")
    assert returned is not None
    assert returned.body == b"mine"
    assert returned.redelivered


async def test_acks_sent_just_before_closing_count(connect: Connect) -> None:
    first, second = await connect(), await connect()
    await asyncio.gather(*(first.publish(outgoing("rollout")) for _ in range(20)))
    subscription = first.subscribe("rollouts", prefetch=20)
    for delivery in [await anext(subscription) for _ in range(20)]:
        assert first.ack(delivery)
    await first.close()
    assert await second.depth("rollouts") == (0, 0)


async def test_a_subscription_keeps_order_and_its_prefetch(connect: Connect) -> None:
    broker = await connect()
    await asyncio.gather(*(broker.publish(outgoing("rollout", b"%d" % i)) for i in range(30)))
    subscription = broker.subscribe("rollouts", prefetch=10)
    held = [await anext(subscription) for _ in range(10)]
    assert [int(d.body) for d in held] == list(range(10))
    assert await broker.depth("rollouts") == (20, 1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(subscription), 0.2)
    for delivery in reversed(held):
        assert broker.ack(delivery)
    rest = [await anext(subscription) for _ in range(10)]
    assert [int(d.body) for d in rest] == list(range(10, 20))


async def test_acks_in_any_order_acknowledge_exactly_those(connect: Connect) -> None:
    first, second = await connect(), await connect()
    await asyncio.gather(*(first.publish(outgoing("rollout", b"%d" % i)) for i in range(40)))
    subscription = first.subscribe("rollouts", prefetch=40)
    held = [await anext(subscription) for _ in range(40)]
    kept = {3, 17, 38}
    for index in [*range(20, 40), *range(20)]:
        if index not in kept:
            assert first.ack(held[index])
            if index % 7 == 0:
                await asyncio.sleep(0.01)
    await first.close()
    returned = [await second.get("rollouts") for _ in kept]
    assert {int(d.body) for d in returned if d is not None} == kept
    assert await second.get("rollouts") is None


async def test_closing_a_subscription_returns_what_nobody_saw(connect: Connect) -> None:
    broker = await connect()
    await asyncio.gather(*(broker.publish(outgoing("rollout", b"%d" % i)) for i in range(5)))
    subscription = broker.subscribe("rollouts", prefetch=5)
    seen = await anext(subscription)
    await subscription.close()
    with pytest.raises(StopAsyncIteration):
        await anext(subscription)
    while (await broker.depth("rollouts"))[0] < 4:
        await asyncio.sleep(0.02)
    assert broker.held(seen)
    assert broker.ack(seen)
    while await broker.depth("rollouts") != (4, 0):
        await asyncio.sleep(0.02)
    bodies = [(await broker.get("rollouts")).body for _ in range(4)]  # type: ignore[union-attr]
    assert {int(body) for body in bodies} == {0, 1, 2, 3, 4} - {int(seen.body)}


async def test_a_get_whose_caller_gave_up_loses_nothing(connect: Connect) -> None:
    broker = await connect()
    for delay in (0.0, 0.0, 0.0005, 0.001, 0.002):
        await broker.publish(outgoing("prompt", b"precious"))
        task = asyncio.create_task(broker.get("prompts"))
        await asyncio.sleep(delay)
        task.cancel()
        try:
            delivery = await task
        except asyncio.CancelledError:
            delivery = None
        while delivery is None:
            delivery = await broker.get("prompts")
        assert delivery.body == b"precious"
        broker.ack(delivery)


async def test_what_no_queue_takes_is_refused(connect: Connect) -> None:
    broker = await connect()
    sent = [broker.publish(outgoing(key)) for key in ("prompt", "nobody", "prompt")]
    results = await asyncio.gather(*sent, return_exceptions=True)
    assert [type(result) for result in results] == [type(None), Unroutable, type(None)]
    with pytest.raises(QueueMissing):
        await broker.get("nothing")
    with pytest.raises(QueueMissing):
        await broker.depth("nothing")


async def test_size_is_checked_before_sending(connect: Connect) -> None:
    broker = await connect()
    with pytest.raises(MessageTooLarge):
        await broker.publish(outgoing("prompt", bytes(MAX_BODY_BYTES + 1)))
    await broker.publish(outgoing("prompt", bytes(MAX_BODY_BYTES)))
    delivery = await broker.get("prompts")
    assert delivery is not None
    assert len(delivery.body) == MAX_BODY_BYTES
    assert broker.reconnects == 0


async def test_an_envelope_that_amqp_cannot_say_harms_nobody_else(connect: Connect) -> None:
    broker = await connect()
    with pytest.raises(BadMessage):
        await broker.publish(outgoing("prompt", message_id="x" * 256))
    await broker.publish(outgoing("prompt"))
    assert broker.reconnects == 0


async def test_a_queue_can_be_addressed_directly_and_is_not_recorded(connect: Connect) -> None:
    broker = await connect()
    await broker.publish(outgoing("rollouts", b"replayed", exchange=""))
    await broker.publish(outgoing("rollout", b"live"))
    bodies = [(await broker.get("rollouts")).body for _ in range(2)]  # type: ignore[union-attr]
    assert bodies == [b"replayed", b"live"]
    recorded = await anext(broker.subscribe("recording", prefetch=10))
    assert recorded.body == b"live"


async def test_the_recording_hears_every_data_message_from_any_offset(connect: Connect) -> None:
    broker = await connect()
    for key in WORK_KEYS.values():
        await broker.publish(outgoing(key, key.encode()))
    from_start = broker.subscribe("recording", prefetch=100)
    heard = [await anext(from_start) for _ in WORK_KEYS]
    assert [d.body.decode() for d in heard] == list(WORK_KEYS.values())
    assert [d.stream_offset for d in heard] == list(range(len(WORK_KEYS)))
    later = await anext(broker.subscribe("recording", prefetch=100, offset=4))
    assert later.body == heard[4].body


async def test_a_run_goes_without_a_recording_and_takes_it_up_again(
    connect: Connect, broker_url: str, run_name: str
) -> None:
    broker = await connect()
    await broker.publish(outgoing("prompt", b"heard"))
    for recording, body in ((False, b"unheard"), (True, b"heard again")):
        other = Broker(broker_url, run=run_name, app_id="test/other")
        await other.start(recording=recording)
        await other.publish(outgoing("prompt", body))
        await other.close()
    recorded = broker.subscribe("recording", prefetch=10)
    assert [(await anext(recorded)).body for _ in range(2)] == [b"heard", b"heard again"]


async def test_dead_goes_to_people_and_to_the_trainer(connect: Connect) -> None:
    broker = await connect()
    await broker.publish(outgoing("", b"why", exchange="dead"))
    for queue in ("dead_letters", "failures"):
        delivery = await broker.get(queue)
        assert delivery is not None
        assert delivery.body == b"why"


async def test_every_process_hears_broadcasts_from_start_on(connect: Connect) -> None:
    brokers = [await connect(app_id=f"test/{i}") for i in range(3)]
    await brokers[0].publish(outgoing("", b"early", exchange="sync"))
    streams = [broker.control() for broker in brokers]
    again = brokers[1].control()
    for stream in streams:
        assert (await anext(stream)).body == b"early"
    await again.ready()
    await brokers[2].publish(outgoing("", b"late", exchange="sync"))
    bodies = [(await anext(stream)).body for stream in (*streams, again)]
    assert bodies[:3] == [b"late"] * 3
    assert bodies[3] in (b"early", b"late")


async def test_events_are_heard_while_listening(connect: Connect) -> None:
    sender, listener = await connect(), await connect()
    events = listener.events()
    await events.ready()
    await sender.emit(outgoing("", b"beat", exchange="events"))
    assert (await anext(events)).body == b"beat"


async def test_only_one_holds_the_fence(connect: Connect) -> None:
    first, second = await connect(), await connect()
    await first.exclusive("trainer")
    assert first.holds("trainer")
    with pytest.raises(ResourceLocked):
        await second.exclusive("trainer")
    assert not second.holds("trainer")
    await first.close()
    async with asyncio.timeout(60):
        while not second.holds("trainer"):
            with contextlib.suppress(ResourceLocked):  # RabbitMQ 4.3 frees it a moment later
                await second.exclusive("trainer")


async def test_purge_counts_what_it_deletes(connect: Connect) -> None:
    broker = await connect()
    await asyncio.gather(*(broker.publish(outgoing("credit")) for _ in range(9)))
    assert await broker.depth("credits") == (9, 0)
    assert await broker.purge("credits") == 9
    assert await broker.depth("credits") == (0, 0)


async def test_runs_do_not_see_each_other(connect: Connect, run_name: str) -> None:
    mine, other = await connect(), await connect(run=f"{run_name}-other")
    await mine.publish(outgoing("prompt"))
    assert await other.get("prompts") is None
    assert await mine.get("prompts") is not None


async def test_a_closed_broker_says_so(connect: Connect) -> None:
    broker = await connect()
    subscription = broker.subscribe("rollouts", prefetch=1)
    waiting = asyncio.create_task(anext(subscription))  # type: ignore[arg-type]
    await asyncio.sleep(0.05)
    await broker.close()
    with pytest.raises(BrokerClosed):
        await waiting
    with pytest.raises(BrokerClosed):
        await broker.publish(outgoing("prompt"))
    await broker.close()


def reject_all(url: str, queue: str) -> int:
    """Refuse what a queue holds as often as it comes; returns how often it came.

    From 4.3 on RabbitMQ counts refusals and lost connections, but not what is politely returned.
    """
    count = 0
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    while (method := channel.basic_get(queue)[0]) is not None:
        channel.basic_reject(method.delivery_tag, requeue=True)
        count += 1
    connection.close()
    return count


async def test_the_broker_gives_up_a_message_that_returns_too_often(
    connect: Connect, broker_url: str
) -> None:
    broker = await connect()
    await broker.publish(outgoing("prompt", b"poison", message_id="poison"))
    returns = await asyncio.to_thread(reject_all, broker_url, full_name(broker.run, "prompts"))
    dead = None
    while dead is None:
        dead = await broker.get("failures")
    assert returns == 65
    assert dead.body == b"poison"
    assert dead.envelope.message_id == "poison"
    assert dead.envelope.headers["x-first-death-reason"] == "delivery_limit"


async def test_several_queues_are_asked_in_order(connect: Connect) -> None:
    broker = await connect()
    await broker.publish(outgoing("prompt", b"last"))
    await broker.publish(outgoing("eval_prompt", b"second"))
    await broker.publish(outgoing("cancelled", b"first"))
    order = ("cancel_queue", "eval_prompts", "prompts")
    taken = [await broker.get(*order) for _ in range(4)]
    assert [(d.queue, d.body) if d else None for d in taken] == [
        ("cancel_queue", b"first"),
        ("eval_prompts", b"second"),
        ("prompts", b"last"),
        None,
    ]


async def test_many_are_taken_at_once_and_the_next_queue_only_when_one_is_empty(
    connect: Connect,
) -> None:
    broker = await connect()
    counts = {"cancelled": 3, "eval_prompt": 2, "prompt": 40}
    sent = [(key, str(n).encode()) for key, count in counts.items() for n in range(count)]
    await asyncio.gather(*(broker.publish(outgoing(key, body)) for key, body in sent))
    order = ("cancel_queue", "eval_prompts", "prompts")
    first = await broker.take(*order, limit=40)
    rest = await broker.take(*order, limit=40)
    assert [d.queue for d in first] == [order[0]] * 3 + [order[1]] * 2 + [order[2]] * 35
    assert [d.queue for d in rest] == [order[2]] * 5
    assert {(WORK_KEYS[d.queue], d.body) for d in (*first, *rest)} == set(sent)
    assert all(broker.ack(delivery) for delivery in (*first, *rest))
    assert await broker.take(*order, limit=40) == []


async def test_what_was_taken_for_a_caller_that_gave_up_returns(connect: Connect) -> None:
    broker = await connect()
    for number in range(20):
        await broker.publish(outgoing("prompt", str(number).encode()))
    for delay in (0.0, 0.001, 0.003, 0.006, 0.012):
        task = asyncio.create_task(broker.take("prompts", limit=20))
        await asyncio.sleep(delay)
        task.cancel()
        results = await asyncio.gather(task, return_exceptions=True)
        for delivery in results[0] if isinstance(results[0], list) else ():
            broker.ack(delivery)
            await broker.publish(outgoing("prompt", delivery.body))
    bodies: set[bytes] = set()
    async with asyncio.timeout(30):
        while len(bodies) < 20:
            bodies |= {delivery.body for delivery in await broker.take("prompts", limit=20)}
    assert bodies == {str(number).encode() for number in range(20)}
