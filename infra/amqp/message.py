"""What goes in and out of the broker: an envelope around opaque bytes."""

from dataclasses import dataclass, field
from typing import Self

from infra.amqp.topology import WORK_KEYS, ExchangeName
from schemas.headers import REPLAY

MAX_BODY_BYTES = 16 * 1024 * 1024
"""The default cap of RabbitMQ 4; checked before publishing to any version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """AMQP's own properties, as Warren uses them."""

    message_id: str
    """Fixed across retries."""
    type: str
    """Class name of the model in the body: `RolloutTask`."""
    correlation_id: str
    """Rollout or group id."""
    app_id: str
    """`role/worker`."""
    headers: dict[str, str | int]
    """Flat: run_id, purpose, checksum, attempt, ..."""
    content_encoding: str | None = None
    timestamp: int
    """Seconds since the epoch, by the sender's clock: for people, never for decisions."""

    @property
    def replayed(self) -> bool:
        """Whether it is a replay, or came of one."""
        return REPLAY in self.headers


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A message to publish. Names are logical: the connection adds the run's prefix."""

    exchange: str
    """`work`, `sync`, `events` or `dead`; empty: straight to the queue named by `routing_key`."""
    routing_key: str
    envelope: Envelope
    body: bytes
    exact: bool = False
    """Whether `routing_key` is the broker's own name of a queue."""

    @classmethod
    def to_queue(cls, queue: str, envelope: Envelope, body: bytes) -> Self:
        """For a work queue: over `work`, where the recording hears it. A replay goes straight
        there, for the recording is of the run alone."""
        if envelope.replayed:
            return cls(exchange="", routing_key=queue, envelope=envelope, body=body)
        return cls(
            exchange=ExchangeName.WORK, routing_key=WORK_KEYS[queue], envelope=envelope, body=body
        )

    @classmethod
    def to_dead(cls, envelope: Envelope, body: bytes) -> Self:
        """For what was given up: people and the trainer hear of it, of a replay people alone."""
        if envelope.replayed:
            return cls(exchange="", routing_key="dead_letters", envelope=envelope, body=body)
        return cls(exchange=ExchangeName.DEAD, routing_key="", envelope=envelope, body=body)


@dataclass(slots=True, eq=False)
class Lease:
    """Whether deliveries of one channel are still ours; shared by them all."""

    epoch: int
    alive: bool = True
    outstanding: dict[int, None] = field(default_factory=dict)
    """Delivery tags neither acknowledged nor given back, in order."""
    settled: int = 0
    """Every tag up to this one was acknowledged together. Touched by the I/O thread only."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A received message. The broker gives it to nobody else while it is `held`."""

    queue: str
    """Logical name."""
    envelope: Envelope
    body: bytes
    redelivered: bool
    """A hint only: the broker may forget it."""
    delivery_count: int
    """Earlier deliveries, where the broker counts them; else 0."""
    tag: int
    """0 when no acknowledgement is expected."""
    epoch: int
    lease: Lease = field(repr=False, compare=False)
    stream_offset: int | None = None
    """Position in a stream, for messages of `recording`."""
