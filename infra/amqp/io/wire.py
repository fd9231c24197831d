"""Between AMQP's properties and our envelopes.

Properties are encoded here, once and in the caller's thread: pika's own encoder is general, and
takes half of the time that publishing a small message costs.
"""

import struct
from functools import lru_cache
from typing import Any

from pika import spec

from infra.amqp.errors import BadMessage
from infra.amqp.message import Delivery, Envelope, Lease

_MAX_SHORT_BYTES = 255
_MAX_HEADER_BYTES = 16 * 1024  # headers share one frame of 128 KiB, and brokers keep them in memory
_INT32, _INT64 = 1 << 31, 1 << 63
_PERSISTENT = b"\x02"

_BASIC = spec.BasicProperties
_FLAGS = (
    _BASIC.FLAG_CONTENT_TYPE
    | _BASIC.FLAG_HEADERS
    | _BASIC.FLAG_CORRELATION_ID
    | _BASIC.FLAG_MESSAGE_ID
    | _BASIC.FLAG_TIMESTAMP
    | _BASIC.FLAG_TYPE
    | _BASIC.FLAG_APP_ID
)


class EncodedProperties(spec.BasicProperties):  # type: ignore[misc]
    """What pika sends as they are."""

    def __init__(self, message_id: str, encoded: bytes) -> None:
        self.message_id = message_id
        self._encoded = encoded

    def encode(self) -> list[bytes]:
        """The parts of the property list."""
        return [self._encoded]


def to_properties(envelope: Envelope, *, persistent: bool) -> EncodedProperties:
    """AMQP properties of an envelope, in the order of AMQP 0-9-1 section 4.2.6.1.

    Raises:
        BadMessage: Something in it cannot be said in AMQP.
    """
    flags, encoding, mode = _FLAGS, b"", b""
    if envelope.content_encoding is not None:
        flags |= _BASIC.FLAG_CONTENT_ENCODING
        encoding = _name(envelope.content_encoding)
    if persistent:
        flags |= _BASIC.FLAG_DELIVERY_MODE
        mode = _PERSISTENT
    try:
        encoded = b"".join(
            (
                flags.to_bytes(2, "big"),
                _name("application/json"),
                encoding,
                _table(envelope.headers),
                mode,
                _short(envelope.correlation_id),
                _short(envelope.message_id),
                envelope.timestamp.to_bytes(8, "big"),
                _name(envelope.type),
                _name(envelope.app_id),
            )
        )
    except (UnicodeEncodeError, OverflowError) as error:
        raise BadMessage(f"the envelope cannot be sent: {error}") from error
    return EncodedProperties(envelope.message_id, encoded)


def _short(text: str) -> bytes:
    raw = text.encode()
    if len(raw) > _MAX_SHORT_BYTES:
        raise BadMessage(f"longer than {_MAX_SHORT_BYTES} bytes: {text[:80]!r}...")
    return bytes((len(raw),)) + raw


_name = lru_cache(maxsize=256)(_short)
"""For what repeats from message to message."""


def _table(headers: dict[str, str | int]) -> bytes:
    pieces = []
    for key, value in headers.items():
        pieces.append(_name(key))
        if isinstance(value, str):
            raw = value.encode()
            pieces.append(struct.pack(">cI", b"S", len(raw)))
            pieces.append(raw)
        elif isinstance(value, int) and -_INT32 <= value < _INT32:
            pieces.append(struct.pack(">ci", b"I", value))
        elif isinstance(value, int) and -_INT64 <= value < _INT64:
            pieces.append(struct.pack(">cq", b"l", value))
        else:
            raise BadMessage(f"header {key!r} is neither text nor a 64-bit integer: {value!r:.80}")
    table = b"".join(pieces)
    if len(table) > _MAX_HEADER_BYTES:
        raise BadMessage(f"headers of {len(table)} bytes are too large: put it into the body")
    return struct.pack(">I", len(table)) + table


def to_delivery(
    queue: str, method: Any, properties: Any, body: bytes, *, lease: Lease, needs_ack: bool
) -> Delivery:
    """A delivery from what pika received; what the sender left out is empty.

    Senders may be strangers: pika hands over text that is no UTF-8 as bytes.
    """
    headers: dict[str, Any] = properties.headers or {}
    count = headers.get("x-delivery-count", 0)
    offset = headers.get("x-stream-offset")
    return Delivery(
        queue,
        Envelope(
            message_id=text(properties.message_id),
            type=text(properties.type),
            correlation_id=text(properties.correlation_id),
            app_id=text(properties.app_id),
            headers={
                k: v for k, v in headers.items() if isinstance(k, str) and isinstance(v, str | int)
            },
            content_encoding=text(properties.content_encoding)
            if properties.content_encoding is not None
            else None,
            timestamp=properties.timestamp or 0,
        ),
        body,
        method.redelivered,
        int(count) if isinstance(count, int) else 0,
        method.delivery_tag if needs_ack else 0,
        lease.epoch,
        lease,
        int(offset) if isinstance(offset, int) else None,
    )


def text(value: object) -> str:
    """What pika hands over as text, or as bytes where it is no UTF-8; nothing is empty."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return "" if value is None else str(value)
