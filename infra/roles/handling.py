"""One queue, each message handled beside the others, until the role is told to stop.

subscribe --> delivery --> handle, any number at a time
stop ------> take nothing more, finish what was begun, return
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from infra.roles.context import RoleContext

if TYPE_CHECKING:
    from infra.amqp.message import Delivery


async def handle_each(
    context: RoleContext,
    queue: str,
    handle: "Callable[[Delivery], Awaitable[None]]",
    *,
    prefetch: int,
) -> None:
    """Handle what a queue holds.

    Args:
        context: Of the role.
        queue: Logical name.
        handle: From delivery to acknowledgement.
        prefetch: Messages handled at a time, at most.

    Raises:
        ExceptionGroup: One of them raised; the others were cancelled.
    """
    subscription = context.broker.subscribe(queue, prefetch=prefetch)
    idle = _Idleness(context, queue)

    async def close_on_stop() -> None:
        await context.stop.wait()
        subscription.close()

    async def one(delivery: "Delivery") -> None:
        with idle.interrupted():
            await handle(delivery)

    helpers = [asyncio.create_task(close_on_stop()), asyncio.create_task(idle.name())]
    try:
        async with asyncio.TaskGroup() as tasks:
            async for delivery in subscription:
                tasks.create_task(one(delivery))
    finally:
        for helper in helpers:
            helper.cancel()
        await asyncio.gather(*helpers, return_exceptions=True)


class _Idleness:
    """Names a queue that has nothing for us.

    It has no deadline: an idle worker is as good as its fleet's work is little. Whether work is
    missing is the trainer's to judge, and that the trainer lives is watched elsewhere.
    """

    def __init__(self, context: RoleContext, queue: str) -> None:
        self._context, self._queue = context, queue
        self._in_hand = 0
        self._news = asyncio.Event()

    @contextmanager
    def interrupted(self) -> Iterator[None]:
        """While one message is in hand."""
        self._in_hand += 1
        self._news.set()
        try:
            yield
        finally:
            self._in_hand -= 1

    async def name(self) -> None:
        """Until cancelled. Looks rarely, so that a busy role pays next to nothing."""
        while not self._context.stop.is_set():
            self._news.clear()
            await asyncio.sleep(self._context.config.deadlines.warn_after)
            if self._in_hand or self._news.is_set():
                continue
            async with self._context.waits(f"a message in {self._queue!r}"):
                await self._context.unless_stopped(self._news.wait())
