"""New weights: heard, fetched and verified beside generation, then swapped in.

heard (broadcast, RunState, silence) -> prepare in a thread -> newer heard? prepare that one
                                           | missing, corrupt: keep serving, read the store
                                           v
                     progress of resumed rollouts -> swap (swap.py) -> admission, snapshots first
                                                       | refused: dropped, the old one serves
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

from consumers.rollout.counters import Counters
from consumers.rollout.limits import Limits
from consumers.rollout.updates.gate import Holds
from infra.observe.waits import Waits
from infra.roles.errors import DeadlinePassed, WarrenError
from infra.weights.prepared import PreparedWeights
from schemas.control import WeightsPublished

logger = logging.getLogger(__name__)

MAX_SKIPS = 2
"""Prepared versions in a row that are not served because a newer one was heard."""
_ABSENT = "it was announced, and the weight store does not have it"

ReadNewest = Callable[[int | None], Awaitable[WeightsPublished | None]]


class HeldWeights(Protocol):
    """The version that this worker holds, and the one in the making. All of it blocks.

    `infra.weights.local.weights.LocalWeights`, or `DescribedWeights` for engines without tensors.
    """

    def prepare(self, published: WeightsPublished) -> PreparedWeights:
        """Fetch and verify a version beside the one that is held.

        Raises:
            WarrenError: It cannot be had; what is held is as it was.
        """

    def taken(self, version: int) -> None:
        """The engine serves what was prepared last."""

    def discard(self) -> None:
        """The engine does not serve what was prepared last."""

    def close(self) -> None:
        """Leave nothing behind."""


class Swaps(Protocol):
    """The part of `Swap` that is used here."""

    @property
    def version(self) -> int: ...

    async def __call__(
        self,
        weights: PreparedWeights,
        *,
        fetch_s: float,
        reread: Callable[[], Awaitable[PreparedWeights]],
    ) -> bool: ...


class WeightSync:
    """Keeps an engine at the newest version. Never ends the worker because weights are bad.

    Args:
        newest: Reads the newest manifest from the store, or the newest below a version.
        weights: Fetches and verifies versions, in a thread.
        swap: Puts it into the engine.
        on_refused: Gives back what waits for a version that will not be served.
        holds: Told when this worker is too far behind.
        counters: Of this worker.
        waits: Of the role.
        limits: Of this worker.
    """

    def __init__(
        self,
        *,
        newest: ReadNewest,
        weights: HeldWeights,
        swap: Swaps,
        on_refused: Callable[[], Awaitable[None]],
        holds: Holds,
        counters: Counters,
        waits: Waits,
        limits: Limits,
    ) -> None:
        self._read_newest = newest
        self._weights = weights
        self._swap = swap
        self._on_refused = on_refused
        self._holds = holds
        self._counters = counters
        self._waits = waits
        self._limits = limits
        self._target: WeightsPublished | None = None
        self._newest_number = -1
        self._unusable = -1
        self._refuses = -1
        self._news = asyncio.Event()
        self._look = False
        self._fetch_s = 0.0
        self.refusal = ""
        """Why the version that was told of last cannot be served."""
        self.behind_since: float | None = None
        """Monotonic time at which a version newer than the one served was heard of."""
        self.updates_s = 0.0
        """From hearing of a version to serving it, or one after it, summed."""

    def hear(self, published: WeightsPublished) -> None:
        """A broadcast or a manifest of this run."""
        if self._target is None or published.version > self._target.version:
            self._target = published
            self.hear_number(published.version)
            self._news.set()
            self._holds.ring()

    @property
    def newest_number(self) -> int:
        """The newest version that was heard of; -1 before the first."""
        return self._newest_number

    @property
    def refuses(self) -> int:
        """The version that was told of last and cannot be served; -1 for none."""
        return self._refuses

    def hear_number(self, version: int) -> None:
        """The trainer's newest version; if its broadcast was missed, the store is read."""
        if version > self._newest_number:
            self._newest_number = version
            if self.behind_since is None and version > self._swap.version:
                self.behind_since = time.monotonic()
            self._note_lag()
        if self._target is None or self._target.version < version:
            self._look = True
            self._news.set()

    async def first(self) -> PreparedWeights:
        """Wait for a first version of the run, verified: the newest, or if that is damaged the one
        before it."""
        async with self._waits(
            "the first weights of the run in the weight store", deadline_s=self._limits.stall_s
        ):
            while True:
                if self._target is None:
                    await self._look_into_store()
                if (target := self._target) is not None:
                    weights = await self._prepared(target)
                    if weights is None:
                        weights = await self._before(target.version)
                    if weights is not None:
                        return weights
                    if self._target is not target:  # a newer one was told of meanwhile
                        continue
                    self._target = None
                    self._news.clear()
                await self._heard(self._limits.retry_s)

    async def run(self) -> None:
        """Follow the newest version until cancelled.

        Raises:
            EngineFailed: The engine died while it was given weights.
            DeadlinePassed: Reading them takes too long, and `on_deadline` is `stop`.
        """
        self._note_lag()
        num_skips = 0
        while True:
            target = await self._next_target()
            weights = await self._prepared(target)
            if weights is None:
                await asyncio.sleep(self._limits.retry_s)
                await self._look_into_store(believe=True)
                continue
            newest = self._target
            if newest is not None and newest.version > target.version and num_skips < MAX_SKIPS:
                num_skips += 1
                logger.info("version %d is skipped for %d", target.version, newest.version)
                continue
            num_skips = 0
            taken = await self._swap(
                weights, fetch_s=self._fetch_s, reread=partial(self._read, target)
            )
            del weights  # nothing keeps its files mapped
            await self.settle(target.version, taken=taken)
            self._unusable = self._refuses = -1 if taken else target.version
            refused = f"the engine refuses version {target.version}"
            self._holds.put("weights", "" if taken else refused)
            if not taken:
                self.refusal = refused
                await self._on_refused()
            self._note_lag()

    def _caught_up(self) -> None:
        """Something newer is served; what was published meanwhile is waited for from now on."""
        now = time.monotonic()
        if self.behind_since is not None and self._counters.swaps:  # not the engine's start
            self.updates_s += now - self.behind_since
        behind = self._newest_number > self._swap.version
        self.behind_since = now if behind else None

    async def settle(self, version: int, *, taken: bool) -> None:
        """What was prepared last is held from now on, or dropped.

        Args:
            version: Of it.
            taken: Whether the engine serves it.
        """
        if taken:
            self._caught_up()
            await asyncio.to_thread(self._weights.taken, version)
        else:
            await asyncio.to_thread(self._weights.discard)

    async def _next_target(self) -> WeightsPublished:
        while True:
            target = self._target
            if target is not None and target.version > max(self._swap.version, self._unusable):
                return target
            if not await self._heard(self._limits.silence_s) or self._look:
                await self._look_into_store()

    async def _before(self, version: int) -> PreparedWeights | None:
        """The newest version below one that cannot be read, if that can."""
        try:
            older = await self._told_newest(version)
        except DeadlinePassed:
            raise
        except (WarrenError, OSError):
            return None
        weights = None if older is None else await self._prepared(older)
        if weights is None:
            self._refuses = version
        else:
            logger.warning("version %d serves until a newer one can be read", weights.version)
        return weights

    async def _heard(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            return False
        self._news.clear()
        return True

    async def _look_into_store(self, *, believe: bool = False) -> None:
        """Read the newest manifest.

        Args:
            believe: It counts even if a newer version was announced, which is not there.
        """
        self._look = False
        announced = self._newest_number
        try:
            published = await self._told_newest(None)
        except DeadlinePassed:
            raise
        except (WarrenError, OSError) as error:
            logger.warning("cannot read the weight store: %s", error)
            return
        if published is None:
            if announced > self._swap.version:
                self._refuse(
                    announced, f"version {announced} was announced and is not in the store"
                )
            return
        if believe and self._target is not None and published.version < self._target.version:
            logger.warning(
                "version %d was announced, the store has %d: going by the store",
                self._target.version,
                published.version,
            )
            self._target, self._newest_number = None, -1
        elif published.version < announced:
            self._refuse(announced, _ABSENT)
        self.hear(published)

    async def _told_newest(self, below: int | None) -> WeightsPublished | None:
        async with self._waits(
            "the weight store to tell its newest version", deadline_s=self._limits.stall_s
        ):
            return await self._read_newest(below)

    async def _prepared(self, published: WeightsPublished) -> PreparedWeights | None:
        """Verified weights, or None: then what is served goes on."""
        began = time.monotonic()
        reading = f"version {published.version} to be read from the weight store"
        try:
            async with self._waits(reading, deadline_s=self._limits.stall_s):
                weights = await self._read(published)
        except DeadlinePassed:
            raise
        except (WarrenError, OSError) as error:
            serving = self._swap.version
            keeps = f"version {serving} serves on" if serving >= 0 else "nothing is served yet"
            logger.warning("version %d cannot be read; %s: %s", published.version, keeps, error)
            self._refuse(published.version, str(error))
            return None
        if published.version >= self._refuses:
            self._refuses = -1
        self._fetch_s = time.monotonic() - began
        logger.debug("version %d is ready · %.2f s", published.version, self._fetch_s)
        return weights

    def _refuse(self, version: int, why: str) -> None:
        """It may be tried again, and counts once."""
        self.refusal = why
        if version != self._refuses:
            self._refuses = version
            self._counters.weights_refused += 1

    async def _read(self, published: WeightsPublished) -> PreparedWeights:
        return await asyncio.to_thread(self._weights.prepare, published)

    def _note_lag(self) -> None:
        served = self._swap.version
        behind = self._newest_number - served
        late = served >= 0 and behind > self._limits.max_version_lag
        self._holds.put(
            "lag",
            f"serves version {served}, {behind} behind the newest; at most "
            f"{self._limits.max_version_lag} are allowed"
            if late
            else "",
        )
