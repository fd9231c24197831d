"""The broker is away or takes nothing: named until it is over, whatever the role does."""

import asyncio
from collections.abc import Callable

from infra.roles.context import RoleContext

_LOOK_S = 0.5


async def watch_broker(context: RoleContext) -> None:
    """Look at the connection until cancelled.

    Raises:
        DeadlinePassed: An outage lasts longer than `deadlines.stall`, which is to stop the role.
    """
    broker = context.broker
    while True:
        if not broker.connected:
            await _until(context, "the broker to answer", lambda: broker.connected)
        elif broker.blocked:
            what = "the broker's memory or disk alarm to end"
            await _until(context, what, lambda: not (broker.blocked and broker.connected))
        await asyncio.sleep(_LOOK_S)


async def _until(context: RoleContext, what: str, over: Callable[[], bool]) -> None:
    async with context.waits(what, deadline_s=context.config.deadlines.stall):
        while True:
            await asyncio.sleep(_LOOK_S)
            if over():
                return
