"""The broker is away or takes nothing: named until it is over, whatever the role does."""

import asyncio
import time
from collections.abc import Callable

from infra.roles.context import RoleContext

_LOOK_S = 0.5
_LATE_S = 1.0
"""A confirm that takes longer is named as a wait."""


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
        elif time.monotonic() - broker.unconfirmed[1] > _LATE_S:
            await _until_confirmed(context, broker.unconfirmed[1])
        await asyncio.sleep(_LOOK_S)


async def _until_confirmed(context: RoleContext, sent_at: float) -> None:
    """What was sent then is confirmed, or has to be sent again."""
    broker = context.broker
    await _until(
        context,
        lambda: f"the broker to confirm {broker.unconfirmed[0]} messages",
        lambda: broker.unconfirmed[1] != sent_at or not broker.connected,
    )


async def _until(
    context: RoleContext, what: str | Callable[[], str], over: Callable[[], bool]
) -> None:
    async with context.waits(what, deadline_s=context.config.deadlines.stall):
        while True:
            await asyncio.sleep(_LOOK_S)
            if over():
                return
