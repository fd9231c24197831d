"""Declares the table of `topology` on a fresh connection. I/O thread only."""

import asyncio
import logging
import time
from typing import Any

from pika import exceptions

from infra.amqp.io.channel import Channel
from infra.amqp.io.faults import NOT_FOUND, describe, reply_code
from infra.amqp.topology import (
    EXCHANGES,
    QUEUES,
    RECORDING,
    WORK_KEYS,
    ExchangeName,
    Queue,
    full_name,
    queue_arguments,
)

logger = logging.getLogger(__name__)

RECORDING_PATIENCE_S = 15.0
"""A stream may need some seconds after a crash of its node."""


class Topology:
    """A run's exchanges and queues at the broker.

    Args:
        run: Its name.
        declares: Whether to make them; a guest takes the broker as it is.
    """

    def __init__(self, run: str, *, declares: bool = True) -> None:
        self._run = run
        self.recording = True
        """Whether the stream is one of them; it is cut off if not."""
        self._declares = declares
        self._one_at_a_time = asyncio.Lock()
        self._recording_lost_at: float | None = None

    async def declare(self, connection: Any, epoch: int) -> None:
        """Make every exchange, queue and binding of the run exist, in two round trips.

        Raises:
            LinkLost: The connection is gone.
            pika.exceptions.ChannelClosed: 406 when something exists with other arguments, 403
                without permission, 404 when a queue's node is still coming up after a crash.
        """
        if not self._declares:
            return
        async with self._one_at_a_time:
            channel = await Channel.open(connection, epoch=epoch)
            for exchange in EXCHANGES:
                channel.raw.exchange_declare(
                    self._name(exchange.name),
                    exchange_type=exchange.kind,
                    durable=exchange.durable,
                )
            for queue in QUEUES:
                self._declare(channel, queue)
            await _barrier(channel)
            if not self.recording:
                await self._cut_off_recording(channel)
                return
            try:
                await self._record(channel)
            except exceptions.ChannelClosed as error:
                if reply_code(error) != NOT_FOUND or not self._recording_is_dead():
                    raise
                await self._go_without_recording(connection, epoch, error)
            else:
                self._recording_lost_at = None
                channel.close()

    async def _record(self, channel: Channel) -> None:
        self._declare(channel, RECORDING)
        await _barrier(channel)
        for key in WORK_KEYS.values():
            channel.raw.exchange_bind(
                self._name(ExchangeName.RECORDING), self._name(ExchangeName.WORK), routing_key=key
            )
        await _barrier(channel)

    def _recording_is_dead(self) -> bool:
        now = time.monotonic()
        if self._recording_lost_at is None:
            self._recording_lost_at = now
        return now - self._recording_lost_at >= RECORDING_PATIENCE_S

    async def _go_without_recording(
        self, connection: Any, epoch: int, error: BaseException
    ) -> None:
        """A stream that never comes back would keep every confirm waiting. (RabbitMQ 3.10 forgets
        its first stream when it is killed within a second of that stream's creation.)"""
        await self._cut_off_recording(await Channel.open(connection, epoch=epoch))
        logger.warning("going on without a recording, its stream is gone: %s", describe(error))

    async def _cut_off_recording(self, channel: Channel) -> None:
        for key in WORK_KEYS.values():
            channel.raw.exchange_unbind(
                self._name(ExchangeName.RECORDING), self._name(ExchangeName.WORK), routing_key=key
            )
        await _barrier(channel)
        channel.close()

    def _declare(self, channel: Channel, queue: Queue) -> None:
        name = self._name(queue.name)
        arguments = queue_arguments(queue, run=self._run)
        channel.raw.queue_declare(name, durable=True, arguments=arguments)
        channel.raw.queue_bind(name, self._name(queue.exchange), routing_key=queue.routing_key)

    def _name(self, name: str) -> str:
        return full_name(self._run, name)


async def _barrier(channel: Channel) -> None:
    """Wait until the broker has done all that was sent before without asking for an answer."""
    await channel.request(
        lambda callback: channel.raw.basic_qos(prefetch_count=0, callback=callback)
    )
