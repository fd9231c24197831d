"""Waiting for a batch: enough trainable groups, and none left behind that would grow too old."""

import logging
import time

from consumers.trainer.arriving.chronicle import Chronicle
from consumers.trainer.books.group import MemberState, OpenGroup
from consumers.trainer.books.staleness import must_wait_for
from consumers.trainer.steering.clock import PausableClock
from consumers.trainer.steering.fleet import Fleet
from consumers.trainer.steering.refusals import Refusals
from infra.roles.context import RoleContext
from infra.roles.errors import DeadlinePassed

logger = logging.getLogger(__name__)

_GLANCE_S = 1.0


class Collector:
    """Chooses batches."""

    def __init__(
        self,
        ctx: RoleContext,
        chronicle: Chronicle,
        clock: PausableClock,
        fleet: Fleet,
        refusals: Refusals,
    ) -> None:
        self._ctx = ctx
        self._chronicle = chronicle
        self._clock = clock
        self._fleet = fleet
        self._refusals = refusals
        self._size = ctx.config.algorithm.groups_per_step
        self._blocker: OpenGroup | None = None
        self._stall_since = clock.now()
        self._num_heard = 0
        self._waited_s = 0.0
        self._waiting_since: float | None = None

    @property
    def waited_s(self) -> float:
        """Seconds waited for batches, the one under way included."""
        since = self._waiting_since
        return self._waited_s + (0.0 if since is None else time.monotonic() - since)

    async def collect(self) -> list[OpenGroup] | None:
        """The next batch, oldest groups first; None when the trainer is told to stop, or the newest
        version must go out again because nobody can serve it.

        Raises:
            DeadlinePassed: Nothing arrived for `deadlines.stall` seconds.
        """
        self._stall_since = self._clock.now()
        self._waiting_since = time.monotonic()
        try:
            return await self._collect()
        finally:
            self._waited_s, self._waiting_since = self.waited_s, None

    async def _collect(self) -> list[OpenGroup] | None:
        async with self._ctx.waits(self._missing):
            while not self._ctx.stop.is_set():
                batch = self._choose()
                if batch is not None:
                    return batch
                if self._refusals.due(self._chronicle.ledger.version):
                    return None
                await self._chronicle.changed.wait(_GLANCE_S)
                self._watch_stall()
        return None

    def _choose(self) -> list[OpenGroup] | None:
        if self._clock.paused:
            return None
        ledger, algorithm = self._chronicle.ledger, self._ctx.config.algorithm
        batch = ledger.ready()[: self._size]
        if len(batch) < self._size:
            self._blocker = None
            return None
        if algorithm.on_stale == "wait":
            self._blocker = must_wait_for(
                batch,
                ledger.groups.values(),
                step=ledger.step,
                version=ledger.version,
                groups_per_step=algorithm.groups_per_step,
                steps_per_publish=algorithm.steps_per_publish,
                max_version_lag=algorithm.max_version_lag,
            )
        return None if self._blocker is not None else batch

    def _missing(self) -> str:
        ledger = self._chronicle.ledger
        if self._clock.paused:
            return f"the operator to resume the run (paused at step {ledger.step})"
        if self._blocker is not None:
            return (
                f"members {self._blocker.indexes(MemberState.PENDING)} of group "
                f"{self._blocker.number}: they may hold tokens of v{self._blocker.bound}, and "
                f"another publication would put them beyond max_version_lag"
            )
        pending = sum(len(g.indexes(MemberState.PENDING)) for g in ledger.groups.values())
        return (
            f"batch of step {ledger.step + 1}: {len(ledger.ready())}/{self._size} groups ready · "
            f"{pending} rollouts of {len(ledger.groups)} groups missing · "
            f"{self._fleet.describe()}"
        )

    def _watch_stall(self) -> None:
        stall = self._ctx.config.deadlines.stall
        num_heard = sum(
            member.state is not MemberState.PENDING
            for group in self._chronicle.ledger.groups.values()
            for member in group.members
        )
        now = self._clock.now()
        if num_heard != self._num_heard:
            self._num_heard, self._stall_since = num_heard, now
        if now - self._stall_since < stall:
            return
        message = f"nothing arrived for {stall:.0f} s while waiting for {self._missing()}"
        if self._ctx.config.deadlines.on_deadline == "stop":
            raise DeadlinePassed(
                message, hint="look at the rollout and reward workers, or raise deadlines.stall"
            )
        logger.warning("%s", message)
        self._stall_since = now
