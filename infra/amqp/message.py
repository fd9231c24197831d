"""What goes in and out of the broker: an envelope around opaque bytes."""

from dataclasses import dataclass, field

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A message to publish. Names are logical: the connection adds the run's prefix."""

    exchange: str
    """`work`, `sync`, `events` or `dead`; empty: straight to the queue named by `routing_key`."""
    routing_key: str
    envelope: Envelope
    body: bytes


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
