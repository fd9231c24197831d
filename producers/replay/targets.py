"""Where replayed messages go: to a queue, marked; or to a file, as they are."""

import asyncio
import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from infra.amqp.connection import Broker
from infra.amqp.errors import Unroutable
from infra.amqp.message import MAX_BODY_BYTES, Outgoing
from infra.amqp.topology import QUEUE_NAMES, RECORDING
from infra.roles.errors import ConfigError, DeadlinePassed, WarrenError
from producers.replay.dump import to_line
from producers.replay.recorded import Recorded

CONFIRM_S = 120.0
"""For the broker's confirm of some messages. An alarm there may need a while to be seen to."""
ORIGINAL = "original"
"""Instead of a queue's name: each message goes to the queue that it came from."""


class Target(Protocol):
    """Takes messages in order."""

    name: str

    def refuses(self, message: Recorded) -> str | None:
        """Why a message cannot go there."""

    async def send(self, messages: Sequence[Recorded]) -> None:
        """Return when they are there."""

    def finish(self) -> None:
        """All of them were sent."""


class QueueTarget:
    """A queue, or of each message its own.

    Args:
        broker: Connected.
        queue: Of the run by its short name, else as the broker calls it; or `original`.
        replay: The mark.
    """

    def __init__(self, broker: Broker, queue: str, replay: str) -> None:
        self._broker = broker
        self._queue = queue
        self._replay = replay
        ours = f"{broker.run}.{queue}" if queue in QUEUE_NAMES else queue
        self.name = f"their own queues of {broker.run}" if queue == ORIGINAL else ours

    def refuses(self, message: Recorded) -> str | None:
        """It has no queue of its own, or no broker takes it."""
        if len(message.body) > MAX_BODY_BYTES:
            return "too large for a broker"
        if self._queue == ORIGINAL and message.own_queue is None:
            return "no queue is for their type"
        return None

    async def send(self, messages: Sequence[Recorded]) -> None:
        """Publish, and wait for the confirms.

        Raises:
            DeadlinePassed: They do not come.
            ConfigError: There is no such queue.
        """
        try:
            async with asyncio.timeout(CONFIRM_S):
                await self._broker.publish_all([self._outgoing(message) for message in messages])
        except Unroutable as error:
            raise ConfigError(
                f"not all is sent to {self.name}: {error.args[0]}",
                hint=f"queues of a run: {', '.join(QUEUE_NAMES[:-1])}; they are there from its "
                "first start",
            ) from error
        except TimeoutError:
            raise DeadlinePassed(
                f"waited {CONFIRM_S:.0f} s for the broker to confirm {len(messages)} messages",
                hint=f"it is away or has an alarm; --offset {messages[0].offset} goes on from here",
            ) from None

    def finish(self) -> None:
        """Nothing is left to do."""

    def _outgoing(self, message: Recorded) -> Outgoing:
        queue = (message.own_queue or "") if self._queue == ORIGINAL else self._queue
        return Outgoing(
            exchange="",
            routing_key=queue,
            envelope=message.marked(self._replay),
            body=message.body,
            exact=queue not in QUEUE_NAMES,
        )


class FileTarget:
    """A dump. It appears under its name when it is whole.

    Raises:
        ConfigError: The file exists, or cannot be written.
    """

    def __init__(self, path: Path) -> None:
        if path.exists():
            raise ConfigError(f"{path} exists", hint="remove it, or choose another name")
        self.name = str(path)
        self._path = path
        self._part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
        try:
            self._file = self._part.open("xb")
        except OSError as error:
            raise ConfigError(f"{self._part} cannot be written: {error.strerror}") from error

    def refuses(self, message: Recorded) -> str | None:
        """Nothing."""
        return None

    async def send(self, messages: Sequence[Recorded]) -> None:
        """Write.

        Raises:
            WarrenError: The disk does not take it.
        """
        self._written(lambda: self._file.writelines(map(to_line, messages)))

    def finish(self) -> None:
        """Give the file its name.

        Raises:
            ConfigError: Somebody else has taken the name meanwhile.
            WarrenError: The disk does not take it.
        """

        def end() -> None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._take_name()

        self._written(end)

    def discard(self) -> None:
        """Leave nothing of a file that has not got its name."""
        with suppress(OSError):  # closing may write
            self._file.close()
        self._part.unlink(missing_ok=True)

    def _take_name(self) -> None:
        try:
            os.link(self._part, self._path)
        except OSError as error:
            if isinstance(error, FileExistsError) or self._path.exists():
                raise ConfigError(
                    f"{self._path} exists: it was written meanwhile", hint="choose another name"
                ) from None
            self._part.rename(self._path)  # a file system without links
        else:
            self._part.unlink()

    def _written(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            raise WarrenError(
                f"{self._part} cannot be written: {error.strerror}", hint="is the disk full?"
            ) from error


def check_queue_name(name: str) -> None:
    """Raises ConfigError for the recording itself: it is of the run alone."""
    if name == RECORDING.name or name.endswith(f".{RECORDING.name}"):
        raise ConfigError(
            "a recording takes no replays", hint=f"one of {', '.join(QUEUE_NAMES[:-1])}"
        )
