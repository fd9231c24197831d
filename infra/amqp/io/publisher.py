"""Confirmed publishing: a window in flight, sent again with the same ids until confirmed.

I/O thread only.
"""

import asyncio
import math
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from pika import spec

from infra.amqp.errors import MessageTooLarge, PublishTimeout, Unroutable
from infra.amqp.io.channel import Channel
from infra.amqp.io.faults import PIKA_ERRORS, size_limit
from infra.amqp.io.link import Link
from infra.amqp.io.mailbox import Reply
from infra.amqp.io.wire import EncodedProperties, to_properties
from infra.amqp.message import MAX_BODY_BYTES, Outgoing
from infra.amqp.topology import ExchangeName, full_name

WINDOW = 512
WINDOW_BYTES = 32 * 1024 * 1024
_LONGEST_PAUSE_S = 5.0


@dataclass(slots=True, eq=False)
class Publication:
    """A message on its way to the broker."""

    exchange: str
    routing_key: str
    properties: EncodedProperties
    body: bytes
    reply: Reply
    mandatory: bool = True
    """It must reach a queue."""
    returned: str = ""
    """Why the broker sent it back."""
    num_nacks: int = 0
    sent_at: float = 0.0
    """Monotonic."""


def to_publication(
    run: str, message: Outgoing, reply: Reply, *, persistent: bool = True
) -> Publication:
    """A message as it is sent; its properties are encoded in the caller's thread.

    Raises:
        MessageTooLarge: Above what brokers take.
        BadMessage: The envelope cannot be sent.
    """
    if len(message.body) > MAX_BODY_BYTES:
        raise too_large(len(message.body), MAX_BODY_BYTES)
    exchange, key = message.exchange, message.routing_key
    if not exchange:
        key = key if message.exact else full_name(run, key)
    else:
        exchange = full_name(run, exchange)
    properties = to_properties(message.envelope, persistent=persistent)
    # control is state that is told again: while its queues are made anew, nobody may be there
    mandatory = message.exchange != ExchangeName.SYNC
    return Publication(exchange, key, properties, message.body, reply, mandatory=mandatory)


class Publisher:
    """The publish link's work."""

    def __init__(self) -> None:
        self.link: Link | None = None
        self._channel: Channel | None = None
        self._events: Channel | None = None
        self._waiting: deque[Publication] = deque()
        self._unconfirmed: dict[int, Publication] = {}
        self._num_refused = 0
        self._tag = 0
        self._num_bytes = 0
        self._settled = asyncio.Event()
        self._error: BaseException | None = None

    @property
    def unconfirmed(self) -> tuple[int, float]:
        """See `Broker.unconfirmed`. From any thread."""
        sent = list(self._unconfirmed.values())
        return len(sent), sent[0].sent_at if sent else math.inf

    async def wait_idle(self) -> None:
        """Wait until every message is settled."""
        while self._waiting or self._unconfirmed or self._num_refused:
            self._settled.clear()
            await self._settled.wait()

    async def attach(self, confirmed: Channel, events: Channel) -> None:
        """Publish on fresh channels; `events` is for what may be lost."""
        await confirmed.request(
            lambda callback: confirmed.raw.confirm_delivery(self._on_confirm, callback)
        )
        confirmed.raw.add_on_return_callback(self._on_return)
        self._channel, self._events, self._tag = confirmed, events, 0

    def detach(self) -> None:
        """The link is lost: what was not confirmed will be sent again, in order."""
        self._channel = self._events = None
        for publication in self._unconfirmed.values():
            publication.returned = ""
        self._waiting.extendleft(reversed(self._unconfirmed.values()))
        self._unconfirmed.clear()
        self._num_bytes = 0

    def submit(self, publication: Publication) -> None:
        """Take a message; `pump()` sends it."""
        if self._error is not None:
            publication.reply.fail(self._error)
        else:
            self._waiting.append(publication)

    def emit(self, publication: Publication) -> None:
        """Send without confirm, or drop."""
        if self._events is None or not self._may_send():
            return
        try:
            self._send(self._events, publication, mandatory=False)
        except PIKA_ERRORS:
            return

    def pump(self) -> None:
        """Send what waits, as far as the window allows."""
        while self._waiting and self._may_send():
            channel = self._channel
            if channel is None or len(self._unconfirmed) >= WINDOW:
                return
            if self._num_bytes >= WINDOW_BYTES:
                return
            publication = self._waiting.popleft()
            if publication.reply.done():  # its caller gave up before it was sent
                continue
            try:
                self._send(channel, publication, mandatory=publication.mandatory)
            except PIKA_ERRORS:
                self._waiting.appendleft(publication)
                return
            publication.sent_at = time.monotonic()
            self._tag += 1
            self._unconfirmed[self._tag] = publication
            self._num_bytes += len(publication.body)

    def broken(self, reason: BaseException) -> None:
        """The channel was closed by the broker: fail what made it do so, if that is known."""
        limit = size_limit(reason)
        if limit is None:
            return
        for tag, publication in list(self._unconfirmed.items()):
            if len(publication.body) > limit:
                del self._unconfirmed[tag]
                self._num_bytes -= len(publication.body)
                publication.reply.fail(too_large(len(publication.body), limit))

    def fail_all(self, error: BaseException) -> None:
        """No message can be sent any more."""
        self._error = error
        for publication in (*self._unconfirmed.values(), *self._waiting):
            publication.reply.fail(error)
        self._unconfirmed.clear()
        self._waiting.clear()
        self._settled.set()

    def _may_send(self) -> bool:
        return self.link is not None and not self.link.blocked

    @staticmethod
    def _send(channel: Channel, publication: Publication, *, mandatory: bool) -> None:
        channel.raw.basic_publish(
            publication.exchange,
            publication.routing_key,
            publication.body,
            publication.properties,
            mandatory,
        )

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        refused = isinstance(method, spec.Basic.Nack)
        tag: int = method.delivery_tag
        if not method.multiple:
            self._settle(tag, refused=refused)
        else:
            while self._unconfirmed and (first := next(iter(self._unconfirmed))) <= tag:
                self._settle(first, refused=refused)
        if self._waiting:
            self.pump()

    def _settle(self, tag: int, *, refused: bool) -> None:
        publication = self._unconfirmed.pop(tag, None)
        if publication is None:
            return
        self._num_bytes -= len(publication.body)
        if refused:
            self._num_refused += 1
            publication.num_nacks += 1
            pause_s = min(0.05 * 2**publication.num_nacks, _LONGEST_PAUSE_S)
            asyncio.get_running_loop().call_later(pause_s, self._again, publication)
        elif publication.returned:
            publication.reply.fail(_unroutable(publication))
        else:
            publication.reply.succeed()
        self._settled.set()

    def _again(self, publication: Publication) -> None:
        self._num_refused -= 1
        self.submit(publication)
        self.pump()

    def _on_return(self, _channel: Any, method: Any, properties: Any, _body: bytes) -> None:
        for publication in self._unconfirmed.values():
            if (
                publication.properties.message_id == properties.message_id
                and publication.routing_key == method.routing_key
            ):
                publication.returned = f"{method.reply_code} {method.reply_text}"


def too_large(size: int, limit: int) -> MessageTooLarge:
    """The error for a body above a limit, both in bytes."""
    return MessageTooLarge(
        f"a message of {size / 2**20:.1f} MiB exceeds the limit of {limit / 2**20:.1f} MiB",
        hint="shorten max_response_tokens, or keep large tool results out of the messages",
    )


def unconfirmed(message: Outgoing, address: str, timeout_s: float) -> PublishTimeout:
    """The error for a message that nobody confirmed in time."""
    return PublishTimeout(
        f"{message.envelope.type} {message.envelope.message_id} was not confirmed within "
        f"{timeout_s:g} s",
        hint=f"the broker at {address} is away or has an alarm",
    )


def _unroutable(publication: Publication) -> Unroutable:
    target = f"{publication.exchange or 'queue'} / {publication.routing_key}"
    return Unroutable(
        f"no queue takes {target}: {publication.returned}",
        hint="was the queue deleted, or is the routing key mistyped?",
    )
