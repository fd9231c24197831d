"""Receiving: subscriptions, acknowledgements, and the channels for both. I/O thread only."""

import contextlib
from collections.abc import Callable
from typing import Any

from infra.amqp.io.channel import Channel
from infra.amqp.io.faults import PIKA_ERRORS, LinkLost
from infra.amqp.io.gets import Gets
from infra.amqp.io.link import Link
from infra.amqp.io.subscription import Subscription
from infra.amqp.io.wire import to_delivery
from infra.amqp.message import Delivery, Lease
from infra.amqp.topology import RECORDING, Version, consumer_arguments, full_name


class Consumer:
    """The consume link's work.

    Args:
        give_back: Calls `give_back()` in the I/O thread, from any other.
        sending: Told in the I/O thread that frames wait to be flushed.
    """

    def __init__(
        self, run: str, give_back: Callable[[Delivery], None], sending: Callable[[], None]
    ) -> None:
        self.link: Link | None = None
        self._run = run
        self._version: Version = (0, 0, 0)
        self._connection: Any = None
        self._epoch = 0
        self._channels: dict[Lease, Channel] = {}
        self.gets = Gets(
            run,
            open_channel=self._open,
            to_delivery=self._take,
            give_back=give_back,
            sending=sending,
        )
        self._acks: dict[Lease, list[int]] = {}
        self._subscriptions: dict[Subscription, Channel | None] = {}
        self._error: BaseException | None = None

    async def attach(self, connection: Any, epoch: int, version: Version) -> None:
        """Open channels on a fresh connection and consume again."""
        self._connection, self._epoch, self._version = connection, epoch, version
        while idle := next((s for s, channel in self._subscriptions.items() if not channel), None):
            await self._consume(idle)
        self.gets.attach()

    def detach(self) -> None:
        """The link is lost: every delivery of it is the broker's again."""
        for lease in self._channels:
            lease.alive = False
        self.gets.detach()
        for subscription in self._subscriptions:
            self._subscriptions[subscription] = None
        self._channels.clear()
        self._acks.clear()

    def fail_all(self, error: BaseException) -> None:
        """Nothing can be received any more."""
        self._error = error
        self.gets.fail_all(error)
        for subscription in self._subscriptions:
            subscription.mailbox.post(subscription.fail, error)

    # -- acknowledgements

    def ack(self, delivery: Delivery) -> None:
        """Acknowledge at the next `flush()`."""
        self._acks.setdefault(delivery.lease, []).append(delivery.tag)

    def flush(self) -> None:
        """Send the acknowledgements, in one where nothing older is outstanding."""
        if not self._acks:
            return
        for lease, tags in self._acks.items():
            channel = self._channels.get(lease)
            if channel is not None and lease.alive:
                try:
                    _send_acks(channel.raw, lease, tags)
                except PIKA_ERRORS:
                    lease.alive = False
        self._acks.clear()

    def give_back(self, delivery: Delivery) -> None:
        """Return a delivery that nobody took to its queue."""
        lease = delivery.lease
        channel = self._channels.get(lease)
        if channel is None or not lease.alive or delivery.tag not in lease.outstanding:
            return
        del lease.outstanding[delivery.tag]
        try:
            channel.raw.basic_nack(delivery.tag, requeue=True)
        except PIKA_ERRORS:
            lease.alive = False

    # -- subscriptions

    async def subscribe(self, subscription: Subscription) -> None:
        """Consume for a subscription, now and after each reconnect."""
        if self._error is not None:
            subscription.mailbox.post(subscription.fail, self._error)
            return
        self._subscriptions[subscription] = None
        link = self.link
        if link is None or not link.up:
            return
        try:
            await self._consume(subscription)
        except (*PIKA_ERRORS, LinkLost) as error:
            link.drop(f"cannot consume from {subscription.queue}: {error}")

    def unsubscribe(self, subscription: Subscription, rest: list[Delivery]) -> None:
        """Cancel the consumer and return what it received but nobody saw."""
        channel = self._subscriptions.pop(subscription, None)
        if channel is not None and subscription.queue == RECORDING.name:
            # pika would reject what still comes, and a stream, which keeps it, refuses the word
            self._channels.pop(channel.lease, None)
            channel.close()
        elif channel is not None and channel.lease.alive:
            with contextlib.suppress(*PIKA_ERRORS):  # going away: then nothing comes any more
                for tag in channel.raw.consumer_tags:
                    channel.raw.basic_cancel(tag)
        for delivery in rest:
            self.give_back(delivery)

    async def _consume(self, subscription: Subscription) -> None:
        channel = await self._open()
        queue, lease = subscription.queue, channel.lease
        await channel.request(
            lambda callback: channel.raw.basic_qos(
                prefetch_count=subscription.prefetch, callback=callback
            )
        )
        if subscription not in self._subscriptions:
            return

        def received(_raw: Any, method: Any, properties: Any, body: bytes) -> None:
            delivery = self._take(queue, lease, method, properties, body)
            subscription.mailbox.post(subscription.push, delivery)

        channel.raw.add_on_cancel_callback(lambda _frame: self._cancelled(queue))
        arguments = consumer_arguments(queue, version=self._version, offset=subscription.offset)
        self._subscriptions[subscription] = channel
        await channel.request(
            lambda callback: channel.raw.basic_consume(
                full_name(self._run, queue),
                received,
                consumer_tag=subscription.tag or None,
                arguments=arguments,
                callback=callback,
            )
        )
        subscription.mailbox.post(subscription.bound)

    def _cancelled(self, queue: str) -> None:
        if self.link is not None:
            self.link.drop(f"the broker cancelled the consumer of {queue}")

    async def _open(self) -> Channel:
        channel = await Channel.open(self._connection, epoch=self._epoch, on_broken=self._broken)
        self._channels[channel.lease] = channel
        return channel

    def _broken(self, reason: BaseException) -> None:
        if self.link is not None:
            self.link.broken(reason)

    def _take(
        self, queue: str, lease: Lease, method: Any, properties: Any, body: bytes
    ) -> Delivery:
        lease.outstanding[method.delivery_tag] = None
        return to_delivery(queue, method, properties, body, lease=lease, needs_ack=True)


def _send_acks(raw: Any, lease: Lease, tags: list[int]) -> None:
    """One `multiple` ack for the run of tags before the oldest outstanding one, the rest singly."""
    tags.sort()
    oldest = next(iter(tuple(lease.outstanding)), None)
    together = [tag for tag in tags if oldest is None or tag < oldest]
    if together and together[-1] > lease.settled:
        lease.settled = together[-1]
        raw.basic_ack(lease.settled, multiple=True)
    for tag in tags[len(together) :]:
        raw.basic_ack(tag)
