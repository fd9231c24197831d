"""Which of the broker's refusals are final, and what users read."""

import asyncio
import socket
import struct

import pytest
from pika import exceptions

from infra.amqp.connection import Broker
from infra.amqp.errors import BrokerRefused, BrokerUnreachable, ResourceLocked, TopologyMismatch
from infra.amqp.io.faults import describe, fatal, size_limit
from infra.amqp.probe import probe


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            exceptions.ProbableAuthenticationError(
                repr(exceptions.ConnectionClosedByBroker(403, "ACCESS_REFUSED - Login was refused"))
            ),
            BrokerRefused,
        ),
        (
            exceptions.ProbableAccessDeniedError(
                repr(exceptions.ConnectionClosedByBroker(530, "NOT_ALLOWED - vhost x not found"))
            ),
            BrokerRefused,
        ),
        (
            exceptions.ConnectionClosedByBroker(403, "ACCESS_REFUSED - Login was refused"),
            BrokerRefused,
        ),
        (
            exceptions.ConnectionClosedByBroker(530, "NOT_ALLOWED - vhost x not found"),
            BrokerRefused,
        ),
        (exceptions.ChannelClosedByBroker(403, "access to queue refused"), BrokerRefused),
        (exceptions.ChannelClosedByBroker(405, "RESOURCE_LOCKED"), ResourceLocked),
        (exceptions.ChannelClosedByBroker(406, "inequivalent arg 'x'"), TopologyMismatch),
    ],
)
def test_final_refusals(error: Exception, expected: type[Exception]) -> None:
    found = fatal(error, address="h:5672")
    assert type(found) is expected
    assert found is not None
    assert found.hint


@pytest.mark.parametrize(
    "error",
    [
        exceptions.ConnectionClosedByBroker(320, "CONNECTION_FORCED"),
        exceptions.ProbableAuthenticationError(
            repr(exceptions.ConnectionClosedByBroker(320, "CONNECTION_FORCED"))
        ),
        exceptions.ProbableAuthenticationError(repr(exceptions.StreamLostError("reset"))),
        exceptions.ProbableAccessDeniedError(repr(exceptions.StreamLostError("reset"))),
        exceptions.ChannelClosedByBroker(404, "home node is down"),
        exceptions.StreamLostError("reset"),
        exceptions.AMQPHeartbeatTimeout("no heartbeat"),
        ConnectionRefusedError(111, "Connection refused"),
        TimeoutError(),
    ],
)
def test_what_time_may_heal(error: Exception) -> None:
    assert fatal(error, address="h:5672") is None
    assert describe(error)


def test_the_brokers_own_size_limit_is_read_from_its_refusal() -> None:
    text = "PRECONDITION_FAILED - message size 20000000 is larger than configured max size 16777216"
    assert size_limit(exceptions.ChannelClosedByBroker(406, text)) == 16777216
    old = "PRECONDITION_FAILED - message size 20 is larger than max size 10"
    assert size_limit(exceptions.ChannelClosedByBroker(406, old)) == 10
    assert size_limit(exceptions.ChannelClosedByBroker(406, "delivery tag unknown")) is None
    assert size_limit(exceptions.ChannelClosedByBroker(404, text)) is None


def test_a_server_that_is_no_broker_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(BrokerUnreachable, match="does not answer as a broker"):
            probe(f"amqp://u:p@127.0.0.1:{port}/", timeout_s=0.2)


async def test_who_is_cut_off_at_once_tries_again_at_once() -> None:
    num_accepted = 0

    async def reset(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_accepted
        num_accepted += 1
        held: socket.socket = writer.get_extra_info("socket")
        held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    server = await asyncio.start_server(reset, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    broker = Broker(f"amqp://u:p@127.0.0.1:{port}/", run="r", app_id="x/0")
    with pytest.raises(BrokerUnreachable, match="no broker answers"):
        await broker.start(6.0)
    assert num_accepted > 3, "one attempt of each connection, and then silence"
    server.close()
