"""Headers nested thousands deep come through a real broker, and end nothing."""

import asyncio
import struct

import pika
import pytest

from infra.amqp.connection import Broker
from infra.amqp.listener import Listener
from infra.amqp.topology import full_name
from tests.broker_fixtures import Connect
from tests.chaos.hostile_message import Hostile, Raw

pytestmark = [pytest.mark.broker, pytest.mark.timeout(120)]

KEYS = {b"F": b"\x01n", b"A": b""}


def deep(kind: bytes) -> Raw:
    """2000 tables or arrays, one in the other."""
    inner = b""
    for _ in range(1999):
        inner = KEYS[kind] + kind + struct.pack(">I", len(inner)) + inner
    return Raw(kind, struct.pack(">I", len(inner)) + inner)


def send(url: str, exchange: str, key: str, kind: bytes) -> None:
    """A stranger's message."""
    message = Hostile(
        queue=key, type=b"X", message_id=b"m", headers={"deep": deep(kind), "beside": 7}, body=b"x"
    )
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        connection.channel().basic_publish(exchange, key, message.body, message.properties())
        connection.process_data_events()
    finally:
        connection.close()


@pytest.mark.parametrize("kind", [b"F", b"A"])
async def test_deep_headers_are_taken_and_heard(
    connect: Connect, broker_url: str, run_name: str, kind: bytes
) -> None:
    broker: Broker = await connect()
    listener = Listener(lambda: broker_url, run=run_name)
    listener.start()
    try:
        async with asyncio.timeout(30.0):
            while not listener.hearing.connected:
                await asyncio.sleep(0.01)
            events = full_name(run_name, "events")
            await asyncio.to_thread(send, broker_url, "", full_name(run_name, "dead_letters"), kind)
            taken = None
            while taken is None:
                taken = await broker.get("dead_letters")
            heard = listener.take()
            while not heard:  # `events` is bound within some seconds
                await asyncio.to_thread(send, broker_url, events, "heartbeat", kind)
                await asyncio.sleep(0.1)
                heard = listener.take()
    finally:
        await asyncio.to_thread(listener.stop)
    assert taken.envelope.headers["beside"] == heard[0].envelope.headers["beside"] == 7
    assert broker.ack(taken) and broker.reconnects == 0
    assert listener.hearing.connections == 1
