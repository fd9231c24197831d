"""Giving a message up: the reason is confirmed at `dead` before the message is acknowledged."""

import base64
import hashlib
from typing import Protocol

from infra.amqp.codec import encode
from infra.amqp.headers import MAX_ID_BYTES, short, travelling
from infra.amqp.message import MAX_BODY_BYTES, Delivery, Outgoing
from schemas.work import Failure, OriginalMessage

_MAX_ORIGINAL_BYTES = MAX_BODY_BYTES // 2  # base64 and JSON around it still fit


class Publishes(Protocol):
    """The part of `Broker` that giving up needs."""

    app_id: str

    async def publish(self, message: Outgoing, *, timeout_s: float | None = None) -> None: ...

    def ack(self, delivery: Delivery) -> bool: ...


def original_message(delivery: Delivery) -> OriginalMessage:
    """The message as it came, for people and for `dead requeue`; cut when it is huge."""
    body = delivery.body[:_MAX_ORIGINAL_BYTES]
    return OriginalMessage(
        queue=delivery.queue,
        type=delivery.envelope.type,
        message_id=delivery.envelope.message_id,
        headers=dict(delivery.envelope.headers),
        content_encoding=delivery.envelope.content_encoding,
        truncated=len(body) < len(delivery.body),
        body=base64.b64encode(body).decode("ascii"),
    )


async def give_up(broker: Publishes, delivery: Delivery, failure: Failure) -> None:
    """Publish `failure` to `dead`, wait for the confirm, then acknowledge `delivery`.

    The failure keeps the original's headers, and its own message id is derived from the
    original's, so that giving up twice is one failure. `failure.original` is filled when missing.
    Whatever the original's ids and headers are, they are no reason to fail here.
    """
    envelope = delivery.envelope
    if failure.original is None:
        failure = failure.model_copy(update={"original": original_message(delivery)})
    ours, body = encode(
        failure,
        app_id=broker.app_id,
        correlation_id=short(envelope.correlation_id),
        headers=travelling(envelope.headers),
        message_id=_dead_id(envelope.message_id),
    )
    await broker.publish(Outgoing.to_dead(ours, body))
    broker.ack(delivery)


def _dead_id(message_id: str) -> str | None:
    """A function of the original's id that AMQP can carry."""
    if len(message_id.encode()) > MAX_ID_BYTES:
        message_id = hashlib.sha256(message_id.encode()).hexdigest()
    return f"{message_id}.dead" if message_id else None
