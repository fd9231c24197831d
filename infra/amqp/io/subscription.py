"""An endless, ordered stream of deliveries that survives reconnects."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Self

from infra.amqp.io.mailbox import Mailbox
from infra.amqp.message import Delivery


class Subscription(AsyncIterator[Delivery]):
    """Deliveries of one queue: `async for delivery in subscription`.

    Belongs to the event loop that made it. What was received over a connection that is gone is
    skipped: the broker sends it again. Iteration ends after `close()`, and raises when the broker
    refuses us for good.
    """

    def __init__(
        self,
        queue: str,
        *,
        mailbox: Mailbox,
        prefetch: int = 0,
        offset: str | int | None = None,
        tag: str = "",
        on_close: Callable[["Subscription", list[Delivery]], None],
    ) -> None:
        self.queue = queue
        self.prefetch = prefetch
        self.tag = tag
        """The consumer's name in RabbitMQ's own pages."""
        self.offset = offset
        """Where the next consumer of a stream begins."""
        self.mailbox = mailbox
        self.num_bindings = 0
        """How often the broker began to send to us: rises with each reconnect."""
        self._on_close = on_close
        self._buffer: deque[Delivery] = deque()
        self._waiters: set[asyncio.Future[None]] = set()
        self._closed = mailbox.loop.create_future()
        self._error: BaseException | None = None

    async def ready(self) -> None:
        """Wait until the broker sends to us: what is published from then on arrives."""
        while self.num_bindings == 0:
            if self._error is not None:
                raise self._error
            if self._closed.done():
                return
            await self._wait()

    def close(self) -> "asyncio.Future[None]":
        """Stop receiving. What was received and not yet iterated goes back to the queue; what was
        iterated stays ackable.

        Returns:
            Done already: may be awaited, need not be.
        """
        if not self._closed.done():
            self._closed.set_result(None)
            rest = [delivery for delivery in self._buffer if delivery.tag]
            self._buffer.clear()
            self._on_close(self, rest)
            self._wake()
        return self._closed

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        while True:
            while self._buffer:
                delivery = self._buffer.popleft()
                if delivery.tag == 0 or delivery.lease.alive:
                    if delivery.stream_offset is not None:
                        self.offset = delivery.stream_offset + 1
                    return delivery
            if self._closed.done():
                raise StopAsyncIteration
            if self._error is not None:
                raise self._error
            await self._wait()

    async def _wait(self) -> None:
        waiter: asyncio.Future[None] = self.mailbox.loop.create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def push(self, delivery: Delivery) -> None:
        """Take a delivery; called through the mailbox."""
        if self._closed.done():
            if delivery.tag:
                self._on_close(self, [delivery])
            return
        self._buffer.append(delivery)
        if self._waiters:
            self._wake()

    def bound(self) -> None:
        """The broker sends to us; called through the mailbox."""
        self.num_bindings += 1
        self._wake()

    def fail(self, error: BaseException) -> None:
        """Nothing can come any more; called through the mailbox."""
        self._error = error
        self._wake()
