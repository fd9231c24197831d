"""Where recorded messages come from: the recording of a run, or a dump of one.

end = newest offset now --> first ... end          of a live run, what comes later is left out
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import closing
from pathlib import Path

from infra.amqp.connection import Broker
from infra.amqp.errors import QueueMissing
from infra.amqp.io.subscription import Subscription
from infra.amqp.message import Delivery
from infra.amqp.topology import RECORDING
from infra.roles.errors import ConfigError, DeadlinePassed
from producers.replay.dump import from_line
from producers.replay.recorded import Recorded

DEADLINE_S = 60.0
"""For the broker's next answer, whatever it is."""
PREFETCH = 512
_FIRST_S = 3.0
"""A stream that sends nothing for so long is empty."""
_CHUNK_S = 0.3
_NEWEST_S = 2.0
_OFFSET = "x-stream-offset"


async def newest_offset(broker: Broker) -> int:
    """Of the recording, about now; -1 when nothing is recorded.

    Raises:
        QueueMissing: There is no recording.
        DeadlinePassed: The broker does not answer.
    """
    await _answered(broker.depth(RECORDING.name), "to say whether there is a recording")
    newest, clock = -1, asyncio.get_running_loop().time
    with closing(broker.subscribe(RECORDING.name, prefetch=PREFETCH, offset="last")) as chunk:
        await _answered(chunk.ready(), "to open the recording")
        until, patience_s = clock() + _FIRST_S, _FIRST_S
        while clock() < until:
            delivery = await _within(chunk, patience_s)
            if delivery is None:
                break
            if newest < 0:
                until, patience_s = clock() + _NEWEST_S, _CHUNK_S
            broker.ack(delivery)
            newest = max(newest, delivery.stream_offset or 0)
    return newest


async def read_recording(broker: Broker, *, first: int, last: int) -> AsyncGenerator[Recorded]:
    """The recorded messages from `first` to `last`, both included, as far as they are kept.

    Raises:
        DeadlinePassed: The next one does not come.
    """
    if first > last:
        return
    with closing(broker.subscribe(RECORDING.name, prefetch=PREFETCH, offset=first)) as stream:
        offset = first - 1
        while offset < last:
            delivery = await _within(stream, DEADLINE_S)
            if delivery is None:
                raise DeadlinePassed(
                    f"waited {DEADLINE_S:.0f} s for what is recorded behind offset {offset}",
                    hint=f"is the broker well? --offset {offset + 1} goes on from there",
                )
            broker.ack(delivery)
            offset = delivery.stream_offset or 0
            if first <= offset <= last:
                yield _recorded(delivery, offset)


async def read_dump(path: Path) -> AsyncGenerator[Recorded]:
    """The messages of a file that `--to-file` wrote.

    Raises:
        ConfigError: It cannot be read, or a line is no message; says which.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield from_line(line, where=f"line {number} of {path}")
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}",
            hint="--from-file takes what --to-file wrote",
        ) from error


def no_recording(run: str, error: QueueMissing) -> ConfigError:
    """The error for a broker that knows of no such run."""
    return ConfigError(
        f"no recording of run {run!r}: {error}",
        hint="is this the run's broker, and --run its folder or recipe? A private node runs with "
        "'run.py up' or 'run.py broker'; --from-file needs none",
    )


def _recorded(delivery: Delivery, offset: int) -> Recorded:
    delivery.envelope.headers.pop(_OFFSET, None)  # the broker's, not the sender's
    return Recorded(offset, delivery.envelope, delivery.body)


async def _within(subscription: Subscription, seconds: float) -> Delivery | None:
    try:
        async with asyncio.timeout(seconds):
            return await anext(subscription)
    except TimeoutError:
        return None


async def _answered(question: object, what: str) -> None:
    try:
        async with asyncio.timeout(DEADLINE_S):
            await question  # type: ignore[misc]
    except TimeoutError:
        raise DeadlinePassed(
            f"waited {DEADLINE_S:.0f} s for the broker {what}",
            hint="its log and its management page tell how it is",
        ) from None
