"""A message as it lies on a queue, bytes and all: what AMQP can carry, not only what we send."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pika import spec

from infra.amqp.codec import CHECKSUM, checksum
from infra.amqp.io.wire import EncodedProperties, to_delivery
from infra.amqp.message import Delivery, Envelope, Lease

NUMBER = "hostile"
"""Header by which a test finds its message again."""


@dataclass(frozen=True, slots=True)
class Raw:
    """An AMQP field value as it is on the wire: its type letter and its bytes."""

    kind: bytes
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Hostile:
    """What is published."""

    queue: str
    """Logical name."""
    type: bytes
    message_id: bytes
    correlation_id: bytes = b""
    app_id: bytes = b"nobody/0"
    content_encoding: bytes | None = None
    headers: Mapping[str, str | int | Raw] = field(default_factory=dict)
    body: bytes

    @classmethod
    def of(cls, queue: str, envelope: Envelope, body: bytes) -> "Hostile":
        """A message as it was sent."""
        encoding = envelope.content_encoding
        return cls(
            queue=queue,
            type=envelope.type.encode(),
            message_id=envelope.message_id.encode(),
            correlation_id=envelope.correlation_id.encode(),
            app_id=envelope.app_id.encode(),
            content_encoding=None if encoding is None else encoding.encode(),
            headers={k: v for k, v in envelope.headers.items() if not k.startswith("x-")},
            body=body,
        )

    def with_headers(self, **changes: str | int | Raw) -> "Hostile":
        """The same with other headers."""
        return replace(self, headers={**self.headers, **changes})

    def without(self, *names: str) -> "Hostile":
        """The same without some headers."""
        return replace(self, headers={k: v for k, v in self.headers.items() if k not in names})

    def sealed(self, body: bytes) -> "Hostile":
        """The same with another body and the checksum that belongs to it."""
        return replace(self.with_headers(**{CHECKSUM: checksum(body)}), body=body)

    def numbered(self, number: int) -> "Hostile":
        """The same, to be found again."""
        kept = {NUMBER: number} if self.headers else {}
        return replace(
            self.with_headers(**kept), message_id=b"hostile-%d" % number if self.message_id else b""
        )

    def encoded(self) -> bytes:
        """AMQP's property list (0-9-1, section 4.2.6.1)."""
        flags = (
            spec.BasicProperties.FLAG_HEADERS
            | spec.BasicProperties.FLAG_DELIVERY_MODE
            | spec.BasicProperties.FLAG_CORRELATION_ID
            | spec.BasicProperties.FLAG_TYPE
            | spec.BasicProperties.FLAG_APP_ID
        )
        encoding = message_id = b""
        if self.content_encoding is not None:
            flags |= spec.BasicProperties.FLAG_CONTENT_ENCODING
            encoding = _short(self.content_encoding)
        if self.message_id:
            flags |= spec.BasicProperties.FLAG_MESSAGE_ID
            message_id = _short(self.message_id)
        table = b"".join(_short(k.encode()) + _value(v) for k, v in self.headers.items())
        return b"".join(
            (
                struct.pack(">H", flags),
                encoding,
                struct.pack(">I", len(table)),
                table,
                b"\x02",
                _short(self.correlation_id),
                message_id,
                _short(self.type),
                _short(self.app_id),
            )
        )

    def properties(self) -> EncodedProperties:
        """For pika to send."""
        return EncodedProperties("", self.encoded())

    def received(self) -> Delivery:
        """As a role would get it, decoded by pika."""
        properties = spec.BasicProperties()
        properties.decode(self.encoded())
        return to_delivery(
            self.queue,
            _Method(),
            properties,
            self.body,
            lease=Lease(epoch=1, outstanding={1: None}),
            needs_ack=True,
        )


class _Method:
    redelivered = False
    delivery_tag = 1


def _short(raw: bytes) -> bytes:
    assert len(raw) < 256
    return bytes((len(raw),)) + raw


def _value(value: Any) -> bytes:
    if isinstance(value, Raw):
        return value.kind + value.value
    if isinstance(value, int):
        return b"l" + struct.pack(">q", value)
    raw: bytes = value.encode()
    return b"S" + struct.pack(">I", len(raw)) + raw
