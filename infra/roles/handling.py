"""One queue, each message handled beside the others, until the role is told to stop.

subscribe --> delivery --> handle, any number at a time
stop ------> take nothing more, finish what was begun, return
"""

import asyncio
from collections.abc import Awaitable, Callable
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

    async def close_on_stop() -> None:
        await context.stop.wait()
        subscription.close()

    async def one(delivery: "Delivery") -> None:
        await handle(delivery)

    watcher = asyncio.create_task(close_on_stop())
    try:
        async with asyncio.TaskGroup() as tasks:
            async for delivery in subscription:
                tasks.create_task(one(delivery))
    finally:
        watcher.cancel()
