"""Free slots ask for work: snapshots first, then evaluations, then prompts.

wait for a free slot and no hold
  |-> take n: cancel_queue -> eval_prompts -> prompts     n <= free slots
  |     each delivery: known id -> adopted · unreadable -> dead · else -> a slot
  +-- all empty: pause 50 ms .. 500 ms, or until the bell rings
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from consumers.rollout.delivery.outbox import Outbox
from consumers.rollout.delivery.reading import (
    QUEUES,
    Refused,
    check_reachable,
    closed_early,
    read_own_headers,
    read_work,
    supersedes,
    take_up,
)
from consumers.rollout.delivery.snapshots import uncounted_headers
from consumers.rollout.limits import Limits
from consumers.rollout.runner import Runner
from consumers.rollout.slots import Held, Slots
from consumers.rollout.updates.gate import Holds
from infra.amqp.connection import Broker
from infra.amqp.message import Delivery
from infra.observe.waits import Waits
from schemas.headers import Headers

logger = logging.getLogger(__name__)


class Intake:
    """Pulls work for free slots.

    Args:
        broker: Connection.
        slots: What is held.
        runner: Takes what comes.
        outbox: For what is refused.
        holds: Reasons to take nothing, and the doorbell.
        foreign: Why a message is not of this run (`RoleContext.foreign`).
        newest: Version, of all that were heard of.
        waits: Of the role.
        limits: Of this worker.
        on_suspect: Awaited before what came back again and again is run: it may take us down.
    """

    def __init__(
        self,
        *,
        broker: Broker,
        slots: Slots,
        runner: Runner,
        outbox: Outbox,
        holds: Holds,
        foreign: Callable[[Headers], str | None],
        newest: Callable[[], int],
        waits: Waits,
        limits: Limits,
        on_suspect: Callable[[Held], Awaitable[None]],
    ) -> None:
        self._broker = broker
        self._slots = slots
        self._runner = runner
        self._outbox = outbox
        self._holds = holds
        self._foreign = foreign
        self._newest = newest
        self._waits = waits
        self._limits = limits
        self._on_suspect = on_suspect
        self._suspects: list[Held] = []
        self._at_rest = asyncio.Event()
        self._at_rest.set()
        self.closed_groups: frozenset[int] = frozenset()
        """Groups whose members nobody needs any more."""

    async def settle(self, timeout_s: float) -> None:
        """Let requests under way come in, once there is a hold, so that nothing is taken unseen."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._at_rest.wait()

    @property
    def resting(self) -> bool:
        """Whether no message is on its way in."""
        return self._at_rest.is_set()

    async def run(self) -> None:
        """Pull until cancelled."""
        async with AsyncExitStack() as waiting:
            pause_s = self._limits.idle_min_s
            while True:
                await self._wanted(waiting)
                self._at_rest.clear()
                came = await self._pull()
                self._at_rest.set()
                if came:
                    await waiting.aclose()
                    pause_s = self._limits.idle_min_s
                    await asyncio.sleep(self._limits.gather_s)
                    continue
                if self._holds or len(self._slots):
                    await waiting.aclose()
                elif pause_s == self._limits.idle_min_s:
                    await waiting.aclose()
                    # without a deadline: whether work is missing is the trainer's to judge
                    empty = self._waits("work: cancel_queue, eval_prompts and prompts are empty")
                    await waiting.enter_async_context(empty)
                await self._holds.rung(pause_s)
                pause_s = min(pause_s * 1.5, self._limits.idle_max_s)

    async def _wanted(self, waiting: AsyncExitStack) -> None:
        """Wait until work may be taken; a hold is a wait with a name, being busy is none."""
        while True:
            if self._holds:
                await waiting.aclose()
                wished = "paused" in self._holds or "draining" in self._holds
                deadline_s = None if wished else self._limits.stall_s
                async with self._waits(lambda: f"admission: {self._holds}", deadline_s=deadline_s):
                    while self._holds:
                        await self._holds.changed()
            elif self._slots.num_free <= 0:
                await waiting.aclose()
                await self._holds.changed()
            else:
                return

    async def _pull(self) -> int:
        """Ask the queues in order for as much as is free; returns how many messages came."""
        num_taken = 0
        while not self._holds and (free := self._slots.num_free) > 0:
            limit = min(free, self._limits.num_gets)
            deliveries = await self._broker.take(*QUEUES, limit=limit)
            for delivery in deliveries:
                await self.accept(delivery)
            await self._isolate()
            num_taken += len(deliveries)
            if len(deliveries) < limit:
                break
        return num_taken

    async def accept(self, delivery: Delivery) -> None:
        """Put a delivery where it belongs."""
        if self._slots.already_settled(delivery):
            self._outbox.acknowledge(delivery)
            return
        try:
            headers = read_own_headers(delivery, self._foreign)
            check_reachable(headers, self._newest())
            if closed_early(headers, self.closed_groups):
                self._outbox.acknowledge(delivery)
            elif (held := self._slots.get(headers.name)) is not None:
                self._readopt(held, delivery, headers)
            else:
                await self._take(take_up(delivery, headers))
        except Refused as refused:
            await self._outbox.refuse(delivery, refused.headers, refused, kind=refused.kind)

    def _readopt(self, held: Held, delivery: Delivery, headers: Headers) -> None:
        work = read_work(delivery, headers)  # a damaged twin is no delivery of this rollout
        if held.waiting and supersedes(work, held.work):
            held.work = work
        self._slots.attach(held, delivery, headers)
        self._runner.readopt(held, headers)

    async def _take(self, held: Held) -> None:
        if held.alone:
            self._suspects.append(held)
            return
        if held.returns.since_progress > 1:
            await self._on_suspect(held)
        self._runner.take(held)

    async def _isolate(self) -> None:
        """Of the suspects that came together one stays. Whatever else is held and does not run goes
        back before it starts: it would count on when the suspect takes us down."""
        suspects, self._suspects = self._suspects, []
        if not suspects:
            return
        chosen = None if self._slots.num_alone else suspects.pop(0)
        idle = [held for held in self._slots if held.waiting and not held.alone]
        for held in (*suspects, *idle):
            await self._outbox.give_back(held, uncounted_headers(held))
            self._slots.remove(held)
        if chosen is not None:
            self._holds.put("alone", f"{chosen.rollout_id} runs alone: it came back too often")
            await self._on_suspect(chosen)
            self._runner.take(chosen)
