"""Property lists against pika's decoder; what AMQP cannot say is refused."""

import asyncio
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import spec

from infra.amqp.errors import BadMessage
from infra.amqp.io.mailbox import Mailbox, Reply
from infra.amqp.io.publisher import to_publication
from infra.amqp.io.wire import to_delivery, to_properties
from infra.amqp.message import Envelope, Lease, Outgoing

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
int64 = st.integers(-(2**63), 2**63 - 1)


@given(
    message_id=names,
    type_=names,
    correlation_id=names,
    app_id=names,
    headers=st.dictionaries(names, names | int64, max_size=12),
    encoding=st.none() | names,
    timestamp=st.integers(0, 2**63 - 1),
    persistent=st.booleans(),
)
def test_pika_reads_what_we_write(
    message_id: str,
    type_: str,
    correlation_id: str,
    app_id: str,
    headers: dict[str, str | int],
    encoding: str | None,
    timestamp: int,
    persistent: bool,
) -> None:
    envelope = Envelope(
        message_id=message_id,
        type=type_,
        correlation_id=correlation_id,
        app_id=app_id,
        headers=headers,
        content_encoding=encoding,
        timestamp=timestamp,
    )
    encoded = b"".join(to_properties(envelope, persistent=persistent).encode())
    read = spec.BasicProperties().decode(encoded)
    assert read.delivery_mode == (2 if persistent else None)
    assert read.content_type == "application/json"
    method = SimpleNamespace(redelivered=True, delivery_tag=5)
    lease = Lease(epoch=3)
    delivery = to_delivery("q", method, read, b"body", lease=lease, needs_ack=True)
    assert delivery.envelope == envelope
    assert (delivery.tag, delivery.epoch, delivery.redelivered) == (5, 3, True)
    # pika's own encoder is the oracle
    oracle = spec.BasicProperties(
        content_type="application/json",
        content_encoding=encoding,
        headers=headers,
        delivery_mode=2 if persistent else None,
        correlation_id=correlation_id,
        message_id=message_id,
        timestamp=timestamp,
        type=type_,
        app_id=app_id,
    )
    assert encoded == b"".join(oracle.encode())


def envelope(**changes: object) -> Envelope:
    values: dict[str, object] = {
        "message_id": "m",
        "type": "T",
        "correlation_id": "c",
        "app_id": "a",
        "headers": {},
        "timestamp": 0,
    }
    return Envelope(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {"message_id": "x" * 256},
        {"correlation_id": "\N{SNOWMAN}" * 86},
        {"type": "\ud800"},
        {"timestamp": -1},
        {"timestamp": 2**64},
        {"headers": {"k": 2**63}},
        {"headers": {"k": 1.5}},
        {"headers": {"k": None}},
        {"headers": {"k" * 256: 1}},
        {"headers": {"k": "x" * 20_000}},
    ],
)
def test_what_amqp_cannot_say_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(BadMessage):
        to_properties(envelope(**changes), persistent=True)


def test_missing_properties_are_empty_and_nested_headers_are_left_out() -> None:
    read = spec.BasicProperties(
        headers={"x-death": [{"queue": "q"}], "x-delivery-count": 3, "x-stream-offset": 9, "n": 1}
    )
    method = SimpleNamespace(redelivered=False, delivery_tag=5)
    delivery = to_delivery("q", method, read, b"", lease=Lease(epoch=1), needs_ack=False)
    assert delivery.envelope == envelope(
        message_id="",
        type="",
        correlation_id="",
        app_id="",
        headers={"x-delivery-count": 3, "x-stream-offset": 9, "n": 1},
    )
    assert (delivery.tag, delivery.delivery_count, delivery.stream_offset) == (0, 3, 9)


def test_text_that_is_no_utf8_is_still_a_delivery_of_text() -> None:
    """A stranger's message must be readable enough to be given up."""
    read = spec.BasicProperties(
        message_id=b"\xff1",
        type=b"\xfe",
        app_id=b"\xfd",
        correlation_id=b"\xfc",
        content_encoding=b"\xfb",
        headers={b"\xfa": "x", "group": 7, "blob": b"\xf9", "list": [1]},
    )
    method = SimpleNamespace(redelivered=False, delivery_tag=1)
    envelope = to_delivery("q", method, read, b"", lease=Lease(epoch=1), needs_ack=True).envelope
    assert envelope.headers == {"group": 7}
    assert (envelope.message_id, envelope.type) == ("\ufffd1", "\ufffd")
    assert (envelope.app_id, envelope.correlation_id) == ("\ufffd", "\ufffd")
    assert envelope.content_encoding == "\ufffd"


@pytest.mark.parametrize(
    ("exchange", "mandatory"), [("work", True), ("dead", True), ("", True), ("sync", False)]
)
async def test_work_must_reach_a_queue_and_control_may_reach_nobody(
    exchange: str, mandatory: bool
) -> None:
    named = Envelope(
        message_id="m", type="Blob", correlation_id="c", app_id="a", headers={}, timestamp=0
    )
    message = Outgoing(exchange=exchange, routing_key="k", envelope=named, body=b"")
    reply = Reply(Mailbox(asyncio.get_running_loop()))
    assert to_publication("run", message, reply).mandatory is mandatory
