"""Between pika's properties and our envelopes."""

from typing import Any

from pika import spec

from infra.amqp.errors import BadMessage
from infra.amqp.message import Delivery, Envelope, Lease

_PERSISTENT = 2
_MAX_SHORT = 255
_MAX_HEADER_BYTES = 64 * 1024  # all headers share one frame of 128 KiB
_INT64 = 1 << 63


def to_properties(envelope: Envelope, *, persistent: bool) -> spec.BasicProperties:
    """AMQP properties of an envelope.

    Raises:
        BadMessage: Something in it cannot be said in AMQP.
    """
    size = 0
    for key, value in envelope.headers.items():
        if isinstance(value, str):
            size += len(key) + len(value)
        elif not isinstance(value, int) or not -_INT64 <= value < _INT64:
            raise BadMessage(f"header {key!r} is neither text nor a 64-bit integer: {value!r:.80}")
        if len(key) > _MAX_SHORT // 4:
            raise BadMessage(f"the name of header {key!r:.80} is too long")
    if size > _MAX_HEADER_BYTES // 4:
        raise BadMessage(f"headers of {size} characters are too large: put it into the body")
    for text in (envelope.message_id, envelope.type, envelope.correlation_id, envelope.app_id):
        if len(text) > _MAX_SHORT // 4 and len(text.encode()) > _MAX_SHORT:
            raise BadMessage(f"longer than {_MAX_SHORT} bytes: {text[:80]!r}...")
    return spec.BasicProperties(
        content_type="application/json",
        content_encoding=envelope.content_encoding,
        headers=envelope.headers,
        delivery_mode=_PERSISTENT if persistent else None,
        correlation_id=envelope.correlation_id,
        message_id=envelope.message_id,
        timestamp=envelope.timestamp,
        type=envelope.type,
        app_id=envelope.app_id,
    )


def to_delivery(
    queue: str, method: Any, properties: Any, body: bytes, *, lease: Lease, needs_ack: bool
) -> Delivery:
    """A delivery from what pika received; what the sender left out is empty."""
    headers: dict[str, Any] = properties.headers or {}
    count = headers.get("x-delivery-count", 0)
    offset = headers.get("x-stream-offset")
    return Delivery(
        queue,
        Envelope(
            message_id=properties.message_id or "",
            type=properties.type or "",
            correlation_id=properties.correlation_id or "",
            app_id=properties.app_id or "",
            headers={k: v for k, v in headers.items() if isinstance(v, str | int)},
            content_encoding=properties.content_encoding,
            timestamp=properties.timestamp or 0,
        ),
        body,
        method.redelivered,
        count if isinstance(count, int) else 0,
        method.delivery_tag if needs_ack else 0,
        lease.epoch,
        lease,
        offset if isinstance(offset, int) else None,
    )
