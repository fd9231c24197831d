"""Lost members are asked for again. Always safe: a duplicate costs tokens, never correctness.

A member is missing when no heartbeat names it and either every work queue has been empty for
`reissue_grace`, or nothing was heard of it for `reissue_after`, doubled each time. While work
flows, at most a tenth of the open groups are asked for at once.
"""

import asyncio
import logging
from collections.abc import Iterable

from consumers.trainer.arriving.chronicle import Chronicle
from consumers.trainer.books.group import MemberState, OpenGroup
from consumers.trainer.steering.clock import PausableClock
from consumers.trainer.steering.credits import Credits
from consumers.trainer.steering.fleet import Fleet
from infra.amqp.topology import WORK_QUEUES
from infra.roles.context import RoleContext
from schemas.headers import Purpose, rollout_id_of

logger = logging.getLogger(__name__)

_PERIOD_S = 5.0


class Silence:
    """Since when nothing was heard of each pending member, and since when all queues are empty.

    Pure: the caller says what time it is.
    """

    def __init__(self) -> None:
        self._heard: dict[str, float] = {}
        self._empty_since: float | None = None

    def observe(
        self, groups: Iterable[OpenGroup], *, held: frozenset[str], empty: bool, now: float
    ) -> None:
        """Look at the run: who is pending, who is held, whether every work queue is empty."""
        if not empty:
            self._empty_since = None
        elif self._empty_since is None:
            self._empty_since = now
        pending = {_name(g.number, i) for g in groups for i in g.indexes(MemberState.PENDING)}
        self._heard = {
            name: now if name in held else self._heard.get(name, now) for name in pending
        }

    def missing(
        self, groups: Iterable[OpenGroup], *, now: float, grace_s: float, after_s: float
    ) -> dict[int, tuple[int, ...]]:
        """Members to ask for again, by group; groups with an unconfirmed credit are left alone."""
        idle = self._empty_since is not None and now - self._empty_since >= grace_s
        lost: dict[int, tuple[int, ...]] = {}
        open_groups = [group for group in groups if group.confirmed]
        for group in open_groups:
            patience = grace_s if idle else after_s * 2**group.attempt
            indexes = tuple(
                index
                for index in group.indexes(MemberState.PENDING)
                if now - self._heard.get(_name(group.number, index), now) >= patience
            )
            if indexes:
                lost[group.number] = indexes
        if idle:
            return lost
        return dict(list(lost.items())[: max(1, len(open_groups) // 10)])

    def asked(self, number: int, indexes: Iterable[int], now: float) -> None:
        """Members were asked for again: their silence begins anew."""
        self._heard.update({_name(number, index): now for index in indexes})
        self._empty_since = None


def _name(group: int, index: int) -> str:
    return rollout_id_of(Purpose.TRAIN, group, index)


class Reissuer:
    """Looks every few seconds."""

    def __init__(
        self,
        ctx: RoleContext,
        chronicle: Chronicle,
        credits: Credits,
        clock: PausableClock,
        fleet: Fleet,
    ) -> None:
        self._ctx = ctx
        self._chronicle = chronicle
        self._credits = credits
        self._clock = clock
        self._fleet = fleet
        self._silence = Silence()

    async def run(self) -> None:
        """Ask again for what is lost, until cancelled."""
        deadlines, groups = self._ctx.config.deadlines, self._chronicle.ledger.groups
        while True:
            await asyncio.sleep(_PERIOD_S)
            if self._clock.paused or not groups:
                continue
            empty = await self._queues_empty()
            now = self._clock.now()
            self._silence.observe(groups.values(), held=self._fleet.held(), empty=empty, now=now)
            lost = self._silence.missing(
                groups.values(),
                now=now,
                grace_s=deadlines.reissue_grace,
                after_s=deadlines.reissue_after,
            )
            for number, missing in lost.items():
                group = groups.get(number)  # what comes while others are asked for is not lost
                pending = group.indexes(MemberState.PENDING) if group is not None else []
                if indexes := tuple(index for index in missing if index in pending):
                    logger.warning("group %d: members %s are lost, asking again", number, indexes)
                    self._silence.asked(number, indexes, now)
                    await self._credits.reissue(number, indexes)

    async def _queues_empty(self) -> bool:
        for queue in WORK_QUEUES:
            ready, _ = await self._ctx.broker.depth(queue)
            if ready:
                return False
        return True
