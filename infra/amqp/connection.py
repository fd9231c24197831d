"""The broker, as the roles see it: coroutines on their own loop, one I/O thread behind.

role's loop                    I/O thread
publish  --- mailbox --->  publish connection   confirms, returns, resending
get, ack --- mailbox --->  consume connection   epochs: an ack never crosses a reconnect
control  --- mailbox --->  control connection   never waits behind data
    <------- mailbox ----  deliveries, confirms
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Any

from infra.amqp.declare import Topology
from infra.amqp.errors import BrokerClosed
from infra.amqp.io.channel import Channel
from infra.amqp.io.consumer import Consumer
from infra.amqp.io.control import Control
from infra.amqp.io.faults import unreachable
from infra.amqp.io.gets import Take
from infra.amqp.io.io_thread import IoThread
from infra.amqp.io.link import Link, connection_parameters, watch
from infra.amqp.io.mailbox import Mailbox, Reply, SharedReply
from infra.amqp.io.publisher import Publisher, to_publication, unconfirmed
from infra.amqp.io.subscription import Subscription
from infra.amqp.io.wire import text
from infra.amqp.io.writes import flush
from infra.amqp.message import Delivery, Outgoing
from infra.amqp.topology import ExchangeName, Version, check_queue, parse_version
from infra.amqp.url import address, parse_url
from infra.roles.errors import WarrenError

logger = logging.getLogger(__name__)

_MISSING = object()


class Broker:
    """Three supervised connections to RabbitMQ that come back on their own.

    Args:
        url: `amqp://user:password@host:port/vhost`.
        run: Name of the run: prefix of every exchange and queue.
        app_id: `role/worker`, shown in RabbitMQ's own pages.
        heartbeat_s: A silent connection is given up after about two of them.
        guest: Leave the broker as it is found: declare nothing, and hear no broadcasts. For tools.

    Raises:
        ConfigError: The URL is malformed.
    """

    def __init__(
        self, url: str, *, run: str, app_id: str, heartbeat_s: int = 20, guest: bool = False
    ) -> None:
        parse_url(url)
        self.run = run
        self.app_id = app_id
        self._address = address(url)
        self._error: WarrenError | None = None
        self._boxes: dict[asyncio.AbstractEventLoop, Mailbox] = {}
        self._io: IoThread | None = None
        self._publisher = Publisher()
        self._consumer = Consumer(run, self._give_back, lambda: self._thread.end_batch_soon())
        self._control = Control(
            run, app_id, reclaim_s=4.0 * heartbeat_s, on_fatal=self._fatal, listens=not guest
        )
        self._topology = Topology(run, declares=not guest)

        def link(name: str, set_up: Any, detach: Any) -> Link:
            return Link(
                name,
                connection_parameters(url, name=f"{run} {app_id} {name}", heartbeat_s=heartbeat_s),
                address=self._address,
                set_up=set_up,
                on_down=detach,
                on_fatal=self._fatal,
                on_unblocked=self._publisher.pump,
            )

        self._publish = link("publish", self._set_up_publish, self._publisher.detach)
        self._consume = link("consume", self._set_up_consume, self._consumer.detach)
        self._sync = link("control", self._set_up_control, self._control.detach)
        self._links = (self._publish, self._consume, self._sync)
        self._publisher.link, self._consumer.link, self._control.link = self._links

    # -- state

    @property
    def unconfirmed(self) -> tuple[int, float]:
        """Messages sent and not confirmed, and when the first was: monotonic, infinite for none."""
        return self._publisher.unconfirmed

    @property
    def connected(self) -> bool:
        """Whether all three connections are up."""
        return all(link.up for link in self._links)

    @property
    def blocked(self) -> bool:
        """Whether a memory or disk alarm of the broker makes publishing wait."""
        return self._publish.blocked

    @property
    def reconnects(self) -> int:
        """How often a connection was lost and made again."""
        return sum(max(0, link.epoch - 1) for link in self._links)

    @property
    def version(self) -> Version:
        """RabbitMQ's version; zeros before the first connection."""
        return parse_version(text(self._sync.server_properties.get("version", "")))

    # -- life

    async def start(self, timeout_s: float = 30.0, *, recording: bool = True) -> None:
        """Connect, declare the topology (the recording if asked); `control()` hears from now on.

        Raises:
            BrokerUnreachable: Nobody answers at the address in time.
            BrokerRefused: Wrong credentials, virtual host or permissions.
            TopologyMismatch: A queue of the run exists with other arguments.
        """
        if self._io is not None:
            raise BrokerClosed("a Broker is started once")
        self._topology.recording = recording
        self._io = IoThread(
            f"amqp {self.app_id}",
            after_batch=self._flush,
            on_died=self._died,
            on_callback_failed=self._callback_failed,
        )
        for link in self._links:
            self._io.spawn(link.run())
        self._io.spawn(watch(self._links))
        try:
            async with asyncio.timeout(timeout_s):
                for link in self._links:
                    await self._io.call(link.wait_up())
        except TimeoutError as error:
            reason = next(link.last_error for link in self._links if not link.up)
            await self.close(0.0)
            raise unreachable(self._address, timeout_s, reason) from error
        except (WarrenError, asyncio.CancelledError):
            await self.close(0.0)
            raise

    async def close(self, timeout_s: float = 5.0) -> None:
        """Wait for outstanding confirms, send outstanding acks, and disconnect."""
        io, closed = self._io, BrokerClosed("the broker connection was closed")
        if io is None or io.loop.is_closed():
            return
        await io.call(self._shut_down(timeout_s, closed))
        await io.stop()
        self._error = self._error or closed

    async def _shut_down(self, timeout_s: float, closed: BrokerClosed) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._publisher.wait_idle()
        self._consumer.flush()
        self._fail_all(closed)
        await asyncio.gather(*(link.close() for link in self._links))

    # -- publishing

    async def publish(self, message: Outgoing, *, timeout_s: float | None = None) -> None:
        """Publish and wait for the broker's confirm; across reconnects with the same id.

        Raises:
            MessageTooLarge: Checked before anything is sent.
            BadMessage: The envelope cannot be sent.
            Unroutable: No queue takes the routing key; never for `sync`.
            PublishTimeout: Not confirmed within `timeout_s`; it may still arrive.
        """
        reply = Reply(self._box())
        self._post(self._publisher.submit, to_publication(self.run, message, reply))
        if timeout_s is None:
            await reply
            return
        try:
            async with asyncio.timeout(timeout_s):
                await reply
        except TimeoutError as error:
            raise unconfirmed(message, self._address, timeout_s) from error

    async def publish_all(self, messages: Sequence[Outgoing]) -> None:
        """Publish some and wait until all are confirmed: one hand-over instead of many.

        Raises:
            MessageTooLarge: One is; the others may have been published.
            BadMessage: One cannot be sent; none was.
            Unroutable: No queue takes one; the others may have been published.
        """
        if not messages:
            return
        reply = SharedReply(self._box(), len(messages))
        for publication in [to_publication(self.run, message, reply) for message in messages]:
            self._post(self._publisher.submit, publication)
        await reply

    async def emit(self, message: Outgoing) -> None:
        """Publish without confirm, to `events`: dropped when disconnected or blocked.

        Raises:
            MessageTooLarge: Checked before anything is sent.
            BadMessage: The envelope cannot be sent.
        """
        publication = to_publication(self.run, message, Reply(self._box()), persistent=False)
        self._post(self._publisher.emit, publication)

    # -- receiving

    async def get(self, queue: str, *others: str) -> Delivery | None:
        """Take one message, or None when all queues are empty; see `take`."""
        taken = await self.take(queue, *others, limit=1)
        return taken[0] if taken else None

    async def take(self, queue: str, *others: str, limit: int) -> list[Delivery]:
        """Take what there is, up to a limit, in one hand-over. Waits through a reconnect.

        Args:
            others: Each is asked only once the one before is empty.
        """
        for name in (queue, *others):
            check_queue(name)
        reply = Reply(self._box())
        self._post(self._consumer.gets.take, Take((queue, *others), limit, reply))
        try:
            taken: list[Delivery] = await reply
        except asyncio.CancelledError:
            if reply.done() and not reply.cancelled() and reply.exception() is None:
                for delivery in reply.result():
                    self._give_back(delivery)
            raise
        return taken

    def subscribe(
        self, queue: str, *, prefetch: int, offset: str | int | None = None
    ) -> Subscription:
        """Receive from a queue until `close()`, at most `prefetch` unacknowledged at a time.

        Args:
            offset: Where to begin in a stream: `first` (default), `last`, `next` or a number.
        """
        check_queue(queue)
        subscription = Subscription(
            queue,
            mailbox=self._box(),
            prefetch=prefetch,
            offset=offset,
            tag=f"{self.app_id} {queue}",
            on_close=lambda closed, rest: self._tell(self._consumer.unsubscribe, closed, rest),
        )
        self._thread.spawn(self._consumer.subscribe(subscription))
        return subscription

    def control(self) -> Subscription:
        """Hear `sync`, from `start()` on, over the control connection. No ack needed."""
        return self._listen(ExchangeName.SYNC)

    def events(self) -> Subscription:
        """Hear `events` from now on; the oldest are dropped when we are slow. No ack needed."""
        return self._listen(ExchangeName.EVENTS)

    def rebuild_control(self) -> None:
        """Make the control connection anew: for who has heard nothing for too long."""
        self._post(self._sync.drop, "nothing heard for too long")

    def _listen(self, exchange: ExchangeName) -> Subscription:
        subscription = Subscription(
            exchange.value,
            mailbox=self._box(),
            on_close=lambda closed, _rest: self._tell(self._control.unsubscribe, exchange, closed),
        )
        self._thread.spawn(self._control.subscribe(exchange, subscription))
        return subscription

    def ack(self, delivery: Delivery) -> bool:
        """Acknowledge. False, and nothing is sent, when the delivery is no longer ours: its
        connection is gone and the broker gives it out again, or it was acknowledged before."""
        if delivery.tag == 0:
            return True
        lease = delivery.lease
        if not lease.alive or lease.outstanding.pop(delivery.tag, _MISSING) is _MISSING:
            return False
        self._post(self._consumer.ack, delivery)
        return True

    def held(self, delivery: Delivery) -> bool:
        """Whether the delivery is ours: not acknowledged, its connection alive."""
        return delivery.lease.alive and delivery.tag in delivery.lease.outstanding

    # -- questions

    async def exclusive(self, name: str) -> None:
        """Hold an exclusive queue: the fence of the only trainer. Taken again after a reconnect;
        if another connection has it by then, every operation of this broker raises.

        Raises:
            ResourceLocked: Another connection holds it.
        """
        await self._thread.call(self._control.claim(name))

    def holds(self, name: str) -> bool:
        """Whether the exclusive queue is ours at this moment: not while disconnected."""
        return self._control.holds(name)

    async def depth(self, queue: str) -> tuple[int, int]:
        """Ready messages and consumers of a queue, exact. (Of a stream, the broker counts none.)

        Raises:
            QueueMissing: No such queue.
        """
        return await self._thread.call(self._control.depth(queue))

    async def purge(self, queue: str) -> int:
        """Delete the ready messages of a queue; returns their number.

        Raises:
            QueueMissing: No such queue.
        """
        return await self._thread.call(self._control.purge(queue))

    # -- inside

    @property
    def _thread(self) -> IoThread:
        if self._error is not None:
            raise self._error
        if self._io is None:
            raise BrokerClosed("the Broker was not started")
        return self._io

    def _post(self, call: Any, *args: Any) -> None:
        self._thread.mailbox.post(call, *args)

    def _tell(self, call: Any, *args: Any) -> None:
        """Like `_post`, for what is pointless without a connection."""
        if self._io is not None and self._error is None:
            self._io.mailbox.post(call, *args)

    def _give_back(self, delivery: Delivery) -> None:
        self._tell(self._consumer.give_back, delivery)

    def _box(self) -> Mailbox:
        loop = asyncio.get_running_loop()
        box = self._boxes.get(loop)
        if box is None:
            box = self._boxes[loop] = Mailbox(loop)
        return box

    def _flush(self) -> None:
        self._consumer.flush()
        self._publisher.pump()
        flush(self._publish.connection)
        flush(self._consume.connection)

    def _fatal(self, error: WarrenError) -> None:
        logger.error("giving up on the broker: %s", error)
        self._error = error
        for link in self._links:
            link.fail(error)
        self._fail_all(error)

    def _died(self, error: BaseException) -> None:
        logger.error("the broker's I/O thread failed", exc_info=error)
        self._fatal(BrokerClosed(f"the broker's I/O failed: {type(error).__name__}: {error}"))

    def _callback_failed(self, reason: str) -> None:
        for link in self._links:
            link.callback_failed(reason)

    def _fail_all(self, error: BaseException) -> None:
        self._publisher.fail_all(error)
        self._consumer.fail_all(error)
        self._control.fail_all(error)
        for box in list(self._boxes.values()):
            box.wake()

    async def _set_up_publish(self, connection: Any, epoch: int) -> None:
        await self._topology.declare(connection, epoch)
        confirmed = await Channel.open(connection, epoch=epoch, on_broken=self._publish_broken)
        events = await Channel.open(connection, epoch=epoch, on_broken=self._publish_broken)
        await self._publisher.attach(confirmed, events)
        self._publisher.pump()

    def _publish_broken(self, reason: BaseException) -> None:
        self._publisher.broken(reason)
        self._publish.broken(reason)

    async def _set_up_consume(self, connection: Any, epoch: int) -> None:
        await self._topology.declare(connection, epoch)
        version = parse_version(text((connection.server_properties or {}).get("version", "")))
        await self._consumer.attach(connection, epoch, version)

    async def _set_up_control(self, connection: Any, epoch: int) -> None:
        await self._topology.declare(connection, epoch)
        await self._control.attach(connection, epoch)
