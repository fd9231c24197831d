"""A policy version goes out: store, journal, broadcast. Numbers never go back.

tensors -> store (durable, manifest exclusive) -> journal Published -> `sync`, confirmed
"""

import asyncio
import logging
import time

from consumers.trainer.arriving.chronicle import Chronicle
from consumers.trainer.learn.learner import Learner
from infra.amqp.codec import encode
from infra.amqp.message import Outgoing
from infra.roles.context import RoleContext
from infra.roles.errors import WarrenError
from infra.runs.failpoints import FailPoint, reach
from infra.weights.errors import VersionExists
from infra.weights.fingerprint import fingerprint
from infra.weights.store import WeightStore
from schemas.control import WeightsPublished
from schemas.journal import Published

logger = logging.getLogger(__name__)


class Publisher:
    """Publishes the learner's weights as versions of one run."""

    def __init__(
        self, ctx: RoleContext, chronicle: Chronicle, store: WeightStore, *, run_id: str
    ) -> None:
        self._ctx = ctx
        self._chronicle = chronicle
        self._store = store
        self._run_id = run_id
        self.lost = False
        """The newest version is not in the store any more: nobody can join before the next."""

    async def publish(self, learner: Learner, step: int) -> float:
        """Publish the weights after `step` as the next version; returns the seconds it took.

        Raises:
            Superseded: A newer trainer has begun.
            StoreFailed: The store's disk refused.
        """
        started = time.monotonic()
        self._chronicle.fence.check()
        published = await asyncio.to_thread(self._put, learner, step)
        self._chronicle.note(
            Published(
                version=published.version, step=published.step, fingerprint=published.fingerprint
            )
        )
        await self._chronicle.commit()
        reach(FailPoint.PUBLISHED_JOURNALED)
        self.lost = False
        await self.broadcast(published)
        reach(FailPoint.BROADCAST_CONFIRMED)
        await asyncio.to_thread(self._store.prune, self._ctx.config.weights.keep)
        reach(FailPoint.STORE_PRUNED)
        seconds = time.monotonic() - started
        logger.info("policy v%d published (weights %.1f s)", published.version, seconds)
        return seconds

    async def broadcast(self, published: WeightsPublished) -> None:
        """Tell everyone on `sync`; returns when the broker confirmed it."""
        envelope, body = encode(
            published,
            app_id=self._ctx.app_id,
            correlation_id=str(published.version),
            headers={"run_id": self._run_id},
            message_id=f"WeightsPublished:{published.version}:{published.incarnation}",
        )
        what = f"the broker to confirm the broadcast of v{published.version}"
        async with self._ctx.waits(what, deadline_s=self._ctx.config.deadlines.stall):
            await self._ctx.broker.publish(
                Outgoing(exchange="sync", routing_key="", envelope=envelope, body=body)
            )

    async def rebroadcast(self) -> int:
        """Broadcast the newest version of this run again; returns its number, -1 without one.

        Raises:
            WarrenError: The store holds versions of another run.
        """
        newest = await asyncio.to_thread(self._store.newest)
        version = self._chronicle.ledger.version
        self.lost = (-1 if newest is None else newest.version) < version
        if self.lost:
            logger.warning(
                "v%d is not in %s any more: its weights go out again under the next number",
                version,
                self._store.folder,
            )
        if newest is None:
            return -1
        if newest.run_id != self._run_id:
            raise WarrenError(
                f"the weight store {self._store.folder} holds versions of run {newest.run_id}, "
                f"this is run {self._run_id}",
                hint="give each run a weights.store of its own",
            )
        if newest.version == version:
            await self.broadcast(newest)
        return newest.version

    def _put(self, learner: Learner, step: int) -> WeightsPublished:
        """Write the next version, or find it written by the step that this one repeats."""
        dtype = self._ctx.config.model.dtype
        tensors = learner.policy.published_tensors(dtype)
        version = self._chronicle.ledger.version + 1
        existing = self._store.manifest(version)
        if existing is not None and existing.run_id == self._run_id:
            if existing.fingerprint == fingerprint(tensors):
                logger.info("v%d is in the store already, with the same weights", version)
                return existing
            newest = self._store.newest()
            version = max(version, newest.version if newest is not None else 0) + 1
            logger.warning(
                "step %d gave other weights than v%d in the store: publishing v%d",
                step,
                existing.version,
                version,
            )
        try:
            return self._store.publish(
                tensors,
                version=version,
                run_id=self._run_id,
                incarnation=self._chronicle.fence.incarnation,
                step=step,
                dtype=dtype,
            )
        except VersionExists as error:
            raise WarrenError(
                f"version {version} appeared in {self._store.folder} meanwhile: {error}",
                hint="another run or a thawed trainer writes to the same weights.store",
            ) from error
