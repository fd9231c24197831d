"""The one table of exchanges, queues and bindings; names at the broker are `<run>.<name>`.

Arguments are equal on every broker version, for a queue that is declared again with other
arguments is refused (406), also after an upgrade. What differs is passed when consuming.

    work --key--> queue                    (direct)
    work --key--> recording --> recording  (a fanout between, so that a dead stream can be cut off)

The recording hears every key of `work`, so a message whose queue is gone is still routed and
confirmed, and no mandatory return tells of it. Hence every connection declares the whole table
before it publishes.
"""

from dataclasses import dataclass
from enum import StrEnum

from infra.amqp.errors import QueueMissing

CONSUMER_TIMEOUT_S = 24 * 3600
"""How long a delivery may stay unacknowledged. RabbitMQ's default of 30 min kills long rollouts."""

DELIVERY_LIMIT = 64
"""A backstop: ours counts returns in the messages. Without one, RabbitMQ 4 drops after 20."""

RECORDING_BYTES = 4 * 1024**3
RECORDING_AGE = "7D"
"""What the recording is bounded to by a policy, which may be changed while a run lives."""

RECORDING_MOST_BYTES = 16 * 1024**3
RECORDING_MOST_AGE = "30D"
"""What bounds it in any case: arguments of the queue, below which a policy may go."""

Version = tuple[int, int, int]
Arguments = dict[str, str | int]


class ExchangeName(StrEnum):
    """Logical names of exchanges."""

    WORK = "work"
    """Credits, tasks, snapshots, rollouts, trajectories."""
    SYNC = "sync"
    """Weight broadcasts, run state, commands."""
    EVENTS = "events"
    """Heartbeats and replies: may be lost."""
    DEAD = "dead"
    """What was given up."""
    RECORDING = "recording"
    """Bound to `work` with every key; feeds the stream."""


class QueueKind(StrEnum):
    """How the broker keeps a queue."""

    QUORUM = "quorum"
    """Replicated log: loses nothing that was confirmed, repeats little after a crash."""
    STREAM = "stream"
    """Append-only, read by any number of readers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """An exchange of the table."""

    name: ExchangeName
    kind: str
    durable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A queue of the table with its bindings."""

    name: str
    kind: QueueKind = QueueKind.QUORUM
    exchange: ExchangeName = ExchangeName.WORK
    routing_key: str = ""
    dead_letters: bool = True
    """Whether the broker sends what exceeds its delivery limit to `dead`."""


EXCHANGES = (
    Exchange(name=ExchangeName.WORK, kind="direct"),
    Exchange(name=ExchangeName.SYNC, kind="fanout"),
    Exchange(name=ExchangeName.EVENTS, kind="fanout", durable=False),
    Exchange(name=ExchangeName.DEAD, kind="fanout"),
    Exchange(name=ExchangeName.RECORDING, kind="fanout"),
)

WORK_KEYS = {
    "credits": "credit",
    "prompts": "prompt",
    "eval_prompts": "eval_prompt",
    "cancel_queue": "cancelled",
    "rollouts": "rollout",
    "trajectories": "trajectory",
    "evaluations": "evaluation",
}
"""Work queue -> its routing key on `work`."""

WORK_QUEUES = tuple(WORK_KEYS)

QUEUES = (
    *(Queue(name=name, routing_key=key) for name, key in WORK_KEYS.items()),
    Queue(name="dead_letters", exchange=ExchangeName.DEAD, dead_letters=False),
    Queue(name="failures", exchange=ExchangeName.DEAD, dead_letters=False),
)

RECORDING = Queue(name="recording", kind=QueueKind.STREAM, exchange=ExchangeName.RECORDING)
"""Declared after everything else, and the only one that a run can do without."""

QUEUE_NAMES = (*(queue.name for queue in QUEUES), RECORDING.name)


def check_queue(name: str) -> None:
    """Whether a queue is in the table.

    Raises:
        QueueMissing: It is not.
    """
    if name not in QUEUE_NAMES:
        raise QueueMissing(
            f"no queue {name!r} in the topology", hint=f"one of {', '.join(QUEUE_NAMES)}"
        )


def full_name(run: str, name: str) -> str:
    """The broker's name of a logical one."""
    return f"{run}.{name}"


def queue_arguments(queue: Queue, *, run: str) -> Arguments:
    """Declaration arguments. `failures` and `dead_letters` have no way out: `-1` would drop on
    RabbitMQ 3.10, so their limit is merely out of reach."""
    if queue.kind is QueueKind.STREAM:
        return {
            "x-queue-type": "stream",
            "x-max-length-bytes": RECORDING_MOST_BYTES,
            "x-max-age": RECORDING_MOST_AGE,
            "x-stream-max-segment-size-bytes": 64 * 1024**2,
        }
    arguments: Arguments = {
        "x-queue-type": "quorum",
        "x-delivery-limit": DELIVERY_LIMIT if queue.dead_letters else 2**31 - 1,
        "x-consumer-timeout": CONSUMER_TIMEOUT_S * 1000,  # 3.10 ignores it
    }
    if queue.dead_letters:
        arguments |= {
            "x-dead-letter-exchange": full_name(run, ExchangeName.DEAD),
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",  # what at-least-once demands; nothing limits the length
        }
    return arguments


def consumer_arguments(
    queue: str, *, version: Version, offset: str | int | None = None
) -> Arguments:
    """Arguments of a consumer on a broker of this version.

    Args:
        queue: Logical name.
        offset: Where to begin in a stream: `first`, `last`, `next` or a number.
    """
    if queue == RECORDING.name:
        return {"x-stream-offset": "first" if offset is None else offset}
    if version >= (4, 3, 0):
        return {"x-consumer-timeout": CONSUMER_TIMEOUT_S * 1000}
    return {}


PRIVATE_QUEUE_ARGUMENTS: Arguments = {"x-max-length": 1000, "x-overflow": "drop-head"}
"""Of the exclusive classic queues on `sync` and `events`."""


def parse_version(text: str) -> Version:
    """`"3.10.8-1.1+deb12u1"` -> `(3, 10, 8)`; what is missing is 0."""
    numbers: list[int] = []
    for part in text.split(".")[:3]:
        digits = ""
        for char in part:
            if not char.isascii() or not char.isdigit():
                break
            digits += char
        numbers.append(int(digits) if digits else 0)
    padded = (*numbers, 0, 0, 0)
    return padded[0], padded[1], padded[2]
