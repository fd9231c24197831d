"""Batched hops between threads: many operations, one wake-up."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import Any

LINGER_S = 0.004
"""Less than a broker needs to write a message down, so that who waits for each confirm before the
next message waits for nothing else."""


class Mailbox:
    """Runs calls in the thread of an event loop, in order, many per wake-up.

    Args:
        loop: Where the calls run.
        after: Runs in the loop after each batch.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, after: Callable[[], None] | None = None
    ) -> None:
        self.loop = loop
        self._after = after
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._woken = False
        self._woken_at = 0.0
        self._deferred: asyncio.AbstractEventLoop | None = None

    def post(self, call: Callable[..., object], *args: Any) -> None:
        """Queue `call(*args)`, from any thread. Dropped when the loop is closed.

        From a running loop, the other is woken when this turn of it is over, and no sooner than
        `LINGER_S` after the last time: each wake-up is a system call, at which the threads begin
        to take the interpreter from each other, and a broker does bursts at half the price.
        """
        self._calls.append((call, args))
        if self._woken:
            return
        sender = asyncio._get_running_loop()
        if sender is None or sender is self.loop:
            self.wake()
        elif self._deferred is not sender:
            self._deferred = sender
            sender.call_at(self._woken_at + LINGER_S, self.wake)

    def wake(self) -> None:
        """Run what was posted without waiting for this turn of the sender's loop to end."""
        self._deferred = None
        if not self._woken:
            self._woken, self._woken_at = True, time.monotonic()
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._woken = False  # before reading: whoever posts from now on wakes us again
        calls, done = self._calls, False
        try:
            for _ in range(len(calls)):
                call, args = calls.popleft()
                call(*args)
            done = True
        finally:
            if not done:  # one call's failure must not strand those behind it
                self.wake()
        if self._after is not None:
            self._after()


class Reply(asyncio.Future[Any]):
    """A future of the caller's loop that the I/O thread settles through the caller's mailbox."""

    __slots__ = ("mailbox",)

    def __init__(self, mailbox: Mailbox) -> None:
        super().__init__(loop=mailbox.loop)
        self.mailbox = mailbox

    def succeed(self, value: Any = None) -> None:
        """Settle with a value, from the I/O thread."""
        self.mailbox.post(self._succeed, value)

    def fail(self, error: BaseException) -> None:
        """Settle with an error, from the I/O thread."""
        self.mailbox.post(self._fail, error)

    def _succeed(self, value: Any) -> None:
        if not self.done():
            self.set_result(value)

    def _fail(self, error: BaseException) -> None:
        if not self.done():
            self.set_exception(error)


class SharedReply(Reply):
    """Settled by the last of several successes, or by the first failure.

    Args:
        count: Successes that it takes; above 0.
    """

    __slots__ = ("_missing",)

    def __init__(self, mailbox: Mailbox, count: int) -> None:
        super().__init__(mailbox)
        self._missing = count

    def succeed(self, value: Any = None) -> None:
        """One of them, from the I/O thread."""
        self._missing -= 1
        if not self._missing:
            super().succeed(value)
