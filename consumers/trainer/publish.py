"""A policy version goes out: store, journal, broadcast. Numbers never go back.

tensors -> delta from what was published last, or all of them, or both
        -> store (durable, manifest exclusive) -> journal Published -> `sync`, confirmed

What was published last is kept in host memory, and replaced only once its successor is in the
store: no delta starts from anything that a worker could not have.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

import torch

from consumers.trainer.arriving.chronicle import Chronicle
from consumers.trainer.keyframes import Keyframes
from consumers.trainer.learn.learner import Learner
from infra.amqp.codec import encode
from infra.amqp.message import Outgoing
from infra.roles.context import RoleContext
from infra.roles.errors import WarrenError
from infra.runs.failpoints import FailPoint, reach
from infra.weights.errors import VersionExists, WeightsCorrupt
from infra.weights.fingerprint import entries_of, of_entries
from infra.weights.publication import (
    MAX_DELTA_SHARE,
    Base,
    Publication,
    adapted,
    casted,
    publication,
)
from infra.weights.store import WeightStore
from schemas.control import WeightFile, WeightsPublished
from schemas.journal import Published

logger = logging.getLogger(__name__)


class Publisher:
    """Publishes the learner's weights as versions of one run.

    Args:
        ctx: Of the role.
        chronicle: Ledger and journal.
        store: Where they go.
        run_id: Of the run.
        refused: The newest version that some rollout worker says it cannot serve, -1 for none;
            asked in the event loop's thread.
    """

    def __init__(
        self,
        ctx: RoleContext,
        chronicle: Chronicle,
        store: WeightStore,
        *,
        run_id: str,
        refused: Callable[[], int],
    ) -> None:
        self._ctx = ctx
        self._chronicle = chronicle
        self._store = store
        self._run_id = run_id
        self._base: Base | None = None
        self._keyframes = Keyframes(ctx.config.weights.keyframe_every)
        self._refused = refused
        self.version_bytes = 0
        """Size of the newest version, as far as it was written by us."""
        self.unsettled = False
        """The newest version in the store is not the journal's: it was lost, and nobody can join
        before the next, or nobody was told of it. Nothing comes before another publication."""

    async def publish(
        self, learner: Learner, step: int, *, whole: bool = False
    ) -> dict[str, float]:
        """Publish the weights after `step` as the next version.

        Args:
            learner: Holds them.
            step: Optimizer steps behind them.
            whole: As a keyframe, whether one is due or not.

        Returns:
            For the step's line: `weights/bytes` of what was written, `weights/delta_share` and
            `weights/changed_share` of the whole, `weights/keyframe` 0 or 1, seconds `time/encode_s`
            and `time/publish_s` (of everything).

        Raises:
            Superseded: A newer trainer has begun.
            StoreFailed: The store refused.
        """
        started = time.monotonic()
        self._chronicle.fence.check()
        refused = self._refused()
        async with self._waits_for_store(f"to take v{self._chronicle.ledger.version + 1}"):
            published, new = await asyncio.to_thread(self._put, learner, step, whole, refused)
        self._chronicle.note(
            Published(
                version=published.version, step=published.step, fingerprint=published.fingerprint
            )
        )
        await self._chronicle.commit()
        reach(FailPoint.PUBLISHED_JOURNALED)
        self.unsettled = False
        await self.broadcast(published)
        reach(FailPoint.BROADCAST_CONFIRMED)
        async with self._waits_for_store("to remove what is old"):
            await asyncio.to_thread(self._store.prune, self._ctx.config.weights.keep)
        reach(FailPoint.STORE_PRUNED)
        seconds = time.monotonic() - started
        metrics = _measured(published, new)
        told = _told(published, metrics)
        logger.info("policy v%d published: %s · %.1f s", published.version, told, seconds)
        return {**metrics, "time/publish_s": seconds}

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
        async with self._waits_for_store("to tell its newest version"):
            newest = await asyncio.to_thread(self._store.newest)
        version = self._chronicle.ledger.version
        stored = -1 if newest is None else newest.version
        self.unsettled = stored != version
        if stored < version:
            logger.warning(
                "v%d is not in %s any more: its weights go out again under the next number",
                version,
                self._store.where,
            )
        if newest is None:
            return -1
        if newest.run_id != self._run_id:
            raise WarrenError(
                f"the weight store {self._store.where} holds versions of run {newest.run_id}, "
                f"this is run {self._run_id}",
                hint="give each run a weights.store of its own",
            )
        if newest.version == version:
            await self.broadcast(newest)
        return newest.version

    def _waits_for_store(self, what: str) -> AbstractAsyncContextManager[None]:
        return self._ctx.waits(
            f"the weight store {self._store.where} {what}",
            deadline_s=self._ctx.config.deadlines.stall,
        )

    def _put(
        self, learner: Learner, step: int, whole: bool, refused: int
    ) -> tuple[WeightsPublished, Publication | None]:
        """Write the next version, or find it written by the step that this one repeats."""
        weights = self._ctx.config.weights
        dtype = self._ctx.config.model.dtype
        tensors = casted(learner.policy.published_tensors(dtype), dtype)
        first = self._chronicle.ledger.version + 1
        found = self._found(first, step, tensors)
        if isinstance(found, WeightsPublished):
            return found, None
        version, whole = found, whole or found != first
        keyframe = whole or self._keyframes.due(version, refused)
        adapter = learner.policy.adapter_tensors()
        if adapter is not None and weights.codec != "full":
            base = self._keyframes.newest
            new = adapted(tensors, adapter, keyframe=keyframe, base_version=base)
        else:
            new = publication(tensors, base=self._base, keyframe=keyframe, codec=weights.codec)
        published = self._write(new, version, step)
        self._advance(published, Base(version, tensors, new.entries))
        return published, new

    def _found(
        self, version: int, step: int, tensors: Mapping[str, torch.Tensor]
    ) -> WeightsPublished | int:
        """The version, if it is in the store with these weights; else the number to take."""
        try:
            existing = self._store.manifest(version)
            if existing is None or existing.run_id != self._run_id:
                return version
            base = Base(version, tensors, entries_of(tensors))
            if existing.fingerprint == of_entries(base.entries):
                logger.info("v%d is in the store already, with the same weights", version)
                self._advance(existing, base)
                return existing
            reason = f"step {step} gave other weights than v{version} in the store"
        except WeightsCorrupt as error:
            reason = str(error)
        free = max(version, *self._store.manifests.versions()) + 1
        logger.warning("%s: publishing v%d", reason, free)
        return free

    def _write(self, new: Publication, version: int, step: int) -> WeightsPublished:
        try:
            return self._store.put(
                new,
                version=version,
                run_id=self._run_id,
                incarnation=self._chronicle.fence.incarnation,
                step=step,
            )
        except VersionExists as error:
            raise WarrenError(
                f"version {version} appeared in {self._store.where} meanwhile: {error}",
                hint="another run or a thawed trainer writes to the same weights.store",
            ) from error

    def _advance(self, published: WeightsPublished, base: Base) -> None:
        self._keyframes.published(published)
        self.version_bytes = _bytes(published.delta) + _bytes(published.full)
        self._base = base if self._ctx.config.weights.codec != "full" else None


def _measured(published: WeightsPublished, new: Publication | None) -> dict[str, float]:
    """For the step's line; nothing, when nothing was written."""
    if new is None:
        return {}
    return {
        "weights/bytes": float(_bytes(published.delta) + _bytes(published.full)),
        "weights/keyframe": float(bool(published.full)),
        **new.metrics,
    }


def _told(published: WeightsPublished, metrics: Mapping[str, float]) -> str:
    """What was written of it."""
    if not metrics:
        return "it was in the store"
    parts = [
        f"{name} {_size(_bytes(files))}"
        for name, files in (
            ("adapter" if published.adapter else "delta", published.delta),
            ("whole", published.full),
        )
        if files
    ]
    if published.full and metrics.get("weights/delta_share", 0.0) > MAX_DELTA_SHARE:
        parts[-1] += f" (a delta would be {metrics['weights/delta_share']:.0%} of it)"
    if "weights/changed_share" in metrics:
        parts.append(f"{metrics['weights/changed_share']:.2%} changed")
    return ", ".join(parts)


def _bytes(files: Sequence[WeightFile]) -> int:
    return sum(file.size_bytes for file in files)


def _size(num_bytes: int) -> str:
    if num_bytes >= 1e9:
        return f"{num_bytes / 1e9:.2f} GB"
    return f"{num_bytes / 1e6:.1f} MB" if num_bytes >= 1e6 else f"{num_bytes / 1e3:.1f} kB"
