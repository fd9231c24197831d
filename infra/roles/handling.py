"""One queue, each message handled beside the others, until the role is told to stop.

subscribe --> delivery --> handle, any number at a time
paused, draining --> take nothing more, finish what was begun --> running again: subscribe
stop ------> take nothing more, finish what was begun, return
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from infra.roles.context import RoleContext, Standing
from schemas.control import RunState, Wanted

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
    door, idle = _Door(context), _Idleness(context, queue)
    context.settling(lambda wanted: _stands(wanted, door, idle))

    async def one(delivery: "Delivery") -> None:
        try:
            await handle(delivery)
        finally:
            idle.in_hand -= 1

    async with asyncio.TaskGroup() as tasks:
        while await door.opens():
            subscription = context.broker.subscribe(queue, prefetch=prefetch)
            closing = asyncio.create_task(door.closes(subscription.close))
            helpers = [closing, asyncio.create_task(idle.name())]
            try:
                async for delivery in subscription:
                    idle.interrupt()
                    tasks.create_task(one(delivery))
            finally:
                door.is_open = False
                for helper in helpers:
                    helper.cancel()
                await asyncio.gather(*helpers, return_exceptions=True)


def _stands(wanted: Wanted, door: "_Door", idle: "_Idleness") -> Standing:
    if wanted is Wanted.RUNNING:
        return Standing(door.is_open, f"takes messages, {idle.in_hand} in hand")
    over = not idle.in_hand or wanted is Wanted.PAUSED
    return Standing(over and not door.is_open, f"takes nothing, {idle.in_hand} in hand")


class _Door:
    """Open while the run wants new work to be taken up and the role is not told to stop."""

    def __init__(self, context: RoleContext) -> None:
        self._context = context
        self._changed = asyncio.Event()
        self._admitted = True
        self.is_open = False
        context.on_run_state(self._hear)

    def _hear(self, _state: RunState) -> None:
        if self._context.admits != self._admitted:
            self._admitted = not self._admitted
            self._changed.set()

    async def opens(self) -> bool:
        """Wait until it is open; False when the role is told to stop."""
        while not self._context.stop.is_set():
            self._changed.clear()
            if self._context.admits:
                self.is_open = True
                return True
            async with self._context.waits("the operator to let the run go on"):
                await self._context.unless_stopped(self._changed.wait())
        return False

    async def closes(self, then: Callable[[], object]) -> None:
        """Do something once it is not open any more."""
        while self._context.admits:
            self._changed.clear()
            if not await self._context.unless_stopped(self._changed.wait()):
                break
        then()


class _Idleness:
    """Names a queue that has nothing for us.

    It has no deadline: an idle worker is as good as its fleet's work is little. Whether work is
    missing is the trainer's to judge, and that the trainer lives is watched elsewhere.
    """

    def __init__(self, context: RoleContext, queue: str) -> None:
        self._context, self._queue = context, queue
        self.in_hand = 0
        """Messages that are being handled."""
        self._news = asyncio.Event()

    def interrupt(self) -> None:
        """A message came: it is in hand until it is counted off."""
        self.in_hand += 1
        self._news.set()

    async def name(self) -> None:
        """Until cancelled. Looks rarely, so that a busy role pays next to nothing."""
        while not self._context.stop.is_set():
            self._news.clear()
            await asyncio.sleep(self._context.config.deadlines.warn_after)
            if self.in_hand or self._news.is_set():
                continue
            async with self._context.waits(f"a message in {self._queue!r}"):
                await self._context.unless_stopped(self._news.wait())
