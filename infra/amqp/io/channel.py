"""Coroutines around pika's channel callbacks. I/O thread only."""

import asyncio
from collections.abc import Callable
from typing import Any

from pika import exceptions

from infra.amqp.io.faults import PIKA_ERRORS, LinkLost
from infra.amqp.message import Lease


class Channel:
    """An open channel whose requests can be awaited.

    Args:
        lease: Ends with the channel.
        on_broken: Told when the broker closes the channel but not the connection.
    """

    def __init__(self, lease: Lease, on_broken: Callable[[BaseException], None] | None) -> None:
        self.lease = lease
        self.raw: Any = None
        self._on_broken = on_broken
        self._requests: set[asyncio.Future[Any]] = set()
        self._error: BaseException | None = None

    @classmethod
    async def open(
        cls,
        connection: Any,
        *,
        epoch: int,
        on_broken: Callable[[BaseException], None] | None = None,
    ) -> "Channel":
        """Open a channel.

        Raises:
            LinkLost: The connection is gone.
            pika.exceptions.AMQPError: The broker refuses.
        """
        channel = cls(Lease(epoch=epoch), on_broken)

        def start(callback: Callable[[Any], None]) -> None:
            channel.raw = connection.channel(on_open_callback=callback)
            channel.raw.add_on_close_callback(channel._closed)

        await channel.request(start)
        return channel

    async def request(self, start: Callable[[Callable[[Any], None]], object]) -> Any:
        """Start a request with its callback and wait for the broker's answer.

        Raises:
            LinkLost: The connection is gone.
            pika.exceptions.ChannelClosed: The broker refused and closed the channel.
        """
        if self._error is not None:
            raise self._error
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._requests.add(future)
        try:
            start(lambda answer: _settle(future, answer))
            return await future
        except PIKA_ERRORS as error:
            if self.raw is None or self._error is None:
                raise LinkLost(str(error)) from error
            raise
        finally:
            self._requests.discard(future)

    def close(self) -> None:
        """Close without waiting."""
        self._on_broken = None
        self.lease.alive = False
        if self.raw is not None and self.raw.is_open:
            self.raw.close()

    def _closed(self, _raw: Any, reason: BaseException) -> None:
        self.lease.alive = False
        self._error = reason
        for future in self._requests:
            if not future.done():
                future.set_exception(reason)
        if self._on_broken is not None and isinstance(reason, exceptions.ChannelClosedByBroker):
            self._on_broken(reason)


def _settle(future: asyncio.Future[Any], answer: Any) -> None:
    if not future.done():
        future.set_result(answer)
