"""Taking messages when they are wanted: many `basic.get` side by side. I/O thread only.

    Take(queues, limit) --> first queue: one get, or as many as it lately had
              ^                 | a message: more of the same, up to the limit
              |                 +- empty: the next queue
              +------------------- limit reached, or all empty: answered, with all at once

A quorum queue answers each get after a round of its log, and a channel has one get under way at a
time. Eight rounds side by side cost the broker little more than one.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from pika import spec

from infra.amqp.io.channel import Channel
from infra.amqp.io.faults import PIKA_ERRORS, LinkLost
from infra.amqp.io.mailbox import Reply
from infra.amqp.message import Delivery
from infra.amqp.topology import full_name

MAX_CHANNELS = 32
"""Opened as they are needed."""


@dataclass(slots=True, eq=False)
class Take:
    """A request for messages that waits for its answer, a list."""

    queues: tuple[str, ...]
    """The next is asked when the one before is empty."""
    limit: int
    reply: Reply
    position: int = 0
    empty: bool = False
    """The queue at `position` had no more."""
    num_asked: int = 0
    """Gets under way."""
    taken: list[Delivery] = field(default_factory=list)

    def begin_again(self) -> None:
        """What was taken is the broker's again."""
        self.position, self.empty, self.num_asked = 0, False, 0
        self.taken.clear()


class Gets:
    """Takes on the channels of one connection after the other.

    Args:
        open_channel: Opens one on the current connection.
        to_delivery: Makes a delivery of what pika received.
        give_back: Returns a delivery to its queue; callable from any thread.
        sending: Told that frames wait to be flushed.
    """

    def __init__(
        self,
        run: str,
        *,
        open_channel: Callable[[], Awaitable[Channel]],
        to_delivery: Callable[..., Delivery],
        give_back: Callable[[Delivery], None],
        sending: Callable[[], None],
    ) -> None:
        self._run = run
        self._open_channel = open_channel
        self._to_delivery = to_delivery
        self._give_back = give_back
        self._sending = sending
        self._num_channels = 0
        self._idle: list[Channel] = []
        self._active: dict[Channel, Take] = {}
        self._waiting: deque[Take] = deque()
        self._expected: dict[str, int] = {}
        """Messages that a queue should still have, by its last answer."""
        self._growing: asyncio.Task[None] | None = None
        self._up = False
        self._error: BaseException | None = None

    def attach(self) -> None:
        """There is a connection."""
        self._up = True
        self._next()

    def detach(self) -> None:
        """It is lost, and what was taken over it and not yet handed over."""
        self._up, self._num_channels = False, 0
        if self._growing is not None:
            self._growing.cancel()
            self._growing = None
        self._waiting.extendleft(reversed(dict.fromkeys(self._active.values())))
        for take in self._waiting:
            take.begin_again()
        self._idle.clear()
        self._active.clear()
        self._expected.clear()

    def fail_all(self, error: BaseException) -> None:
        """Nothing can be received any more."""
        self._error = error
        for take in dict.fromkeys((*self._active.values(), *self._waiting)):
            take.reply.fail(error)
        self._active.clear()
        self._waiting.clear()

    def take(self, take: Take) -> None:
        """Begin; answered when the link is up."""
        if self._error is not None:
            take.reply.fail(self._error)
            return
        self._waiting.append(take)
        self._next()

    def _next(self) -> None:
        while self._up and self._waiting:
            if not self._idle:
                self._grow()
                return
            take = self._waiting.popleft()
            if not take.reply.done():
                self._go_on(take)

    def _go_on(self, take: Take) -> None:
        """Ask for what is missing, or answer."""
        while not take.num_asked and take.empty and take.position + 1 < len(take.queues):
            take.position, take.empty = take.position + 1, False
        missing = take.limit - len(take.taken) - take.num_asked
        if take.empty or missing <= 0 or take.reply.done():
            if not take.num_asked:
                take.reply.mailbox.post(self._hand_over, take.reply, take.taken)
            return
        queue = take.queues[take.position]
        likely = self._expected.get(queue, 0)
        for _ in range(min(missing, likely) or int(not take.num_asked)):
            if not self._idle:
                self._grow()
                break
            if not self._ask(self._idle.pop(), take, queue):
                return
        if not take.num_asked:
            self._waiting.append(take)

    def _ask(self, channel: Channel, take: Take, queue: str) -> bool:
        """Send a get; False when the channel is just going away, and everything with it."""

        def received(_raw: Any, method: Any, properties: Any, body: bytes) -> None:
            self._got(channel, (method, properties, body))

        self._active[channel] = take
        try:
            channel.raw.basic_get(full_name(self._run, queue), received)
        except PIKA_ERRORS:
            return False
        self._sending()
        take.num_asked += 1
        self._expected[queue] = max(0, self._expected.get(queue, 0) - 1)
        return True

    def _got(self, channel: Channel, message: tuple[Any, Any, bytes] | None) -> None:
        take = self._active.pop(channel, None)
        if take is None or not channel.lease.alive:
            return
        queue = take.queues[take.position]
        take.num_asked -= 1
        if message is None:
            take.empty = True
            self._expected[queue] = 0
        else:
            take.taken.append(self._to_delivery(queue, channel.lease, *message))
            self._expected[queue] = max(0, message[0].message_count - take.num_asked)
        self._idle.append(channel)
        self._go_on(take)
        self._next()

    def _hand_over(self, reply: Reply, taken: list[Delivery]) -> None:
        """In the caller's loop: if it stopped waiting, the messages go back."""
        if not reply.done():
            reply.set_result(taken)
            return
        for delivery in taken:
            self._give_back(delivery)

    def _grow(self) -> None:
        if self._num_channels < MAX_CHANNELS and self._growing is None:
            self._growing = asyncio.ensure_future(self._open())

    async def _open(self) -> None:
        """Twice as many as there were; a link that is lost meanwhile attaches us again."""
        wanted = min(MAX_CHANNELS, 2 * self._num_channels or 1) - self._num_channels
        try:
            for channel in await asyncio.gather(*(self._open_channel() for _ in range(wanted))):
                channel.raw.add_callback(
                    lambda _frame, channel=channel: self._got(channel, None),
                    [spec.Basic.GetEmpty],
                    one_shot=False,
                )
                self._idle.append(channel)
                self._num_channels += 1
        except (*PIKA_ERRORS, LinkLost):
            return
        finally:
            if self._growing is asyncio.current_task():
                self._growing = None
        self._next()
