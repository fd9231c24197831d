"""The control link: broadcasts on exclusive queues, the trainer's fence, questions to the broker.

I/O thread only.
"""

import asyncio
import logging
import re
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from infra.amqp.errors import QueueMissing, ResourceLocked
from infra.amqp.io.channel import Channel
from infra.amqp.io.faults import (
    NOT_FOUND,
    PIKA_ERRORS,
    RESOURCE_LOCKED,
    LinkLost,
    fatal,
    reply_code,
)
from infra.amqp.io.link import Link
from infra.amqp.io.subscription import Subscription
from infra.amqp.io.wire import to_delivery
from infra.amqp.message import Delivery
from infra.amqp.topology import PRIVATE_QUEUE_ARGUMENTS, ExchangeName, full_name
from infra.roles.errors import WarrenError

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Fan:
    """One exclusive queue on a fanout exchange, copied to every subscription of this process."""

    exchange: ExchangeName
    always: bool
    """Bound as soon as we are connected, so that nothing broadcast after `start()` is missed."""
    subscriptions: set[Subscription] = field(default_factory=set)
    queue: str = ""
    consuming: bool = False


class Control:
    """The control link's work.

    Args:
        reclaim_s: How long a lost fence is fought for before we give up.
        on_fatal: Told when another connection holds it.
        listens: Whether to hear broadcasts before anybody asks for them.
    """

    def __init__(
        self,
        run: str,
        app_id: str,
        *,
        reclaim_s: float,
        on_fatal: Callable[[WarrenError], None],
        listens: bool = True,
    ) -> None:
        self.link: Link | None = None
        self.fans = {
            ExchangeName.SYNC: Fan(ExchangeName.SYNC, always=listens),
            ExchangeName.EVENTS: Fan(ExchangeName.EVENTS, always=False),
        }
        self._run = run
        self._app_id = app_id
        self._owner = re.sub(r"[^A-Za-z0-9._-]", "-", app_id)[:60]
        self._reclaim_s = reclaim_s
        self._on_fatal = on_fatal
        self._channel: Channel | None = None
        self._serving = asyncio.Lock()
        self._fences: set[str] = set()
        self._held: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def attach(self, connection: Any, epoch: int) -> None:
        """Bind again, and take the fences again, on a fresh connection."""
        self._channel = await Channel.open(connection, epoch=epoch, on_broken=self._broken)
        self._channel.raw.add_on_cancel_callback(
            lambda frame: self._broken(LinkLost(f"consumer cancelled: {frame.method}"))
        )
        for fan in self.fans.values():
            await self._serve(fan)
        for name in self._fences:
            task = asyncio.ensure_future(self._reclaim(name, connection, epoch))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def detach(self) -> None:
        """The link is lost, and with it every exclusive queue."""
        self._channel = None
        self._held.clear()
        for fan in self.fans.values():
            fan.queue, fan.consuming = "", False

    def fail_all(self, error: BaseException) -> None:
        """Nothing can be heard any more."""
        for fan in self.fans.values():
            for subscription in fan.subscriptions:
                subscription.mailbox.post(subscription.fail, error)

    async def subscribe(self, exchange: ExchangeName, subscription: Subscription) -> None:
        """Copy an exchange's messages to a subscription from now on."""
        fan = self.fans[exchange]
        fan.subscriptions.add(subscription)
        if fan.consuming:
            subscription.mailbox.post(subscription.bound)
            return
        try:
            await self._serve(fan)
        except (*PIKA_ERRORS, LinkLost) as error:
            if self.link is not None:
                self.link.drop(f"cannot listen to {exchange}: {error}")

    def unsubscribe(self, exchange: ExchangeName, subscription: Subscription) -> None:
        """Stop copying. The queue stays: it is bounded and goes with the connection."""
        self.fans[exchange].subscriptions.discard(subscription)

    async def _serve(self, fan: Fan) -> None:
        async with self._serving:
            channel = self._channel
            if channel is None or not (fan.always or fan.subscriptions):
                return
            if not fan.queue:
                fan.queue = await self._bind(channel, fan)
            if fan.subscriptions and not fan.consuming:
                await self._listen(channel, fan)

    async def _bind(self, channel: Channel, fan: Fan) -> str:
        name = full_name(self._run, f"{fan.exchange}.{self._owner}.{secrets.token_hex(4)}")
        channel.raw.queue_declare(name, exclusive=True, arguments=PRIVATE_QUEUE_ARGUMENTS)
        await channel.request(
            lambda callback: channel.raw.queue_bind(
                name, full_name(self._run, fan.exchange), routing_key="", callback=callback
            )
        )
        return name

    async def _listen(self, channel: Channel, fan: Fan) -> None:
        def received(_raw: Any, method: Any, properties: Any, body: bytes) -> None:
            delivery: Delivery = to_delivery(
                fan.exchange.value, method, properties, body, lease=channel.lease, needs_ack=False
            )
            for subscription in fan.subscriptions:
                subscription.mailbox.post(subscription.push, delivery)

        await channel.request(
            lambda callback: channel.raw.basic_consume(
                fan.queue,
                received,
                auto_ack=True,
                exclusive=True,
                consumer_tag=f"{self._app_id} {fan.exchange}",
                callback=callback,
            )
        )
        fan.consuming = True
        for subscription in fan.subscriptions:
            subscription.mailbox.post(subscription.bound)

    def _broken(self, reason: BaseException) -> None:
        if self.link is not None:
            self.link.broken(reason)

    # -- the fence

    async def claim(self, name: str) -> None:
        """Hold an exclusive queue, now and after each reconnect.

        Raises:
            ResourceLocked: Another connection holds it.
        """

        async def declare(channel: Channel) -> None:
            await channel.request(
                lambda callback: channel.raw.queue_declare(
                    full_name(self._run, name), exclusive=True, callback=callback
                )
            )

        await self.ask(declare, queue=name)
        self._fences.add(name)
        self._held.add(name)

    def holds(self, name: str) -> bool:
        """Whether the fence is ours at this moment."""
        return name in self._held

    async def _reclaim(self, name: str, connection: Any, epoch: int) -> None:
        """Our own dead connection may still hold it: the broker needs three heartbeats to see."""
        deadline = asyncio.get_running_loop().time() + self._reclaim_s
        while self.link is not None and not connection.is_closed:
            try:
                channel = await Channel.open(connection, epoch=epoch)
                await channel.request(
                    lambda callback, raw=channel.raw: raw.queue_declare(  # type: ignore[misc]
                        full_name(self._run, name), exclusive=True, callback=callback
                    )
                )
            except (*PIKA_ERRORS, LinkLost) as error:
                if reply_code(error) != RESOURCE_LOCKED:
                    if not connection.is_closed and self.link.connection is connection:
                        self._broken(error)  # begin again: without its fence nobody is safe
                    return
                if asyncio.get_running_loop().time() > deadline:
                    self._on_fatal(_locked(name))
                    return
                logger.info("waiting for the exclusive queue %s after a reconnect", name)
                await asyncio.sleep(1.0)
            else:
                channel.close()
                self._held.add(name)
                return

    # -- questions

    async def depth(self, queue: str) -> tuple[int, int]:
        """Ready messages and consumers of a queue.

        Raises:
            QueueMissing: No such queue.
        """
        name = full_name(self._run, queue)

        async def count(channel: Channel) -> tuple[int, int]:
            answer = await channel.request(
                lambda callback: channel.raw.queue_declare(name, passive=True, callback=callback)
            )
            return int(answer.method.message_count), int(answer.method.consumer_count)

        return await self.ask(count, queue=queue)

    async def purge(self, queue: str) -> int:
        """Delete the ready messages of a queue and count them.

        Raises:
            QueueMissing: No such queue.
        """
        name = full_name(self._run, queue)

        async def empty(channel: Channel) -> int:
            answer = await channel.request(
                lambda callback: channel.raw.queue_purge(name, callback=callback)
            )
            return int(answer.method.message_count)

        return await self.ask(empty, queue=queue)

    async def ask(self, question: Callable[[Channel], Awaitable[T]], *, queue: str) -> T:
        """Ask on a channel of its own, again after a reconnect.

        Raises:
            QueueMissing: No such queue.
            ResourceLocked: It is exclusive to another connection.
            WarrenError: The broker refuses.
        """
        link = self.link
        assert link is not None
        while True:
            await link.wait_up()
            try:
                channel = await Channel.open(link.connection, epoch=link.epoch)
                answer = await question(channel)
            except (*PIKA_ERRORS, LinkLost) as error:
                code = reply_code(error)
                if code == NOT_FOUND:
                    raise QueueMissing(f"the broker has no queue {queue!r} of this run") from error
                if code == RESOURCE_LOCKED:
                    raise _locked(queue) from error
                final = fatal(error, address=link.address)
                if final is not None:
                    raise final from error
                await asyncio.sleep(0.05)
            else:
                channel.close()
                return answer


def _locked(name: str) -> ResourceLocked:
    return ResourceLocked(
        f"another connection holds the exclusive queue {name!r} of this run",
        hint="is another trainer of this run alive? The broker frees it three heartbeats after a "
        "crash",
    )
