"""Beginning: a fresh run in an empty place, or going on with what a run left behind."""

import asyncio
import logging
import secrets
import shutil

from consumers.trainer.stepping import StepMemory
from infra.amqp.topology import WORK_QUEUES
from infra.roles.context import RoleContext
from infra.roles.errors import ConfigError
from infra.runs.journal_reader import JournalReader
from infra.weights.store import WeightStore

logger = logging.getLogger(__name__)

_QUEUES = (*WORK_QUEUES, "failures")


def new_run_id() -> str:
    """Drawn when a run first starts, kept in its journal and checkpoints."""
    return secrets.token_hex(8)


def has_history(ctx: RoleContext) -> bool:
    """Whether a trainer has begun the run; one that died before its first record has not."""
    return bool(JournalReader(ctx.folder.journal).history())


async def make_place(ctx: RoleContext, *, purge: bool) -> None:
    """Make sure that nothing of an earlier run is in the way of a fresh one.

    Raises:
        ConfigError: Something is, and `purge` is not given.
    """
    if purge:
        await _purge(ctx)
        return
    if has_history(ctx):
        raise ConfigError(
            f"{ctx.folder.root} holds the journal of an earlier run",
            hint="--resume goes on with it, --purge drops it, run.name=... begins another",
        )
    left = {queue: (await ctx.broker.depth(queue))[0] for queue in _QUEUES}
    full = ", ".join(f"{queue} ({count})" for queue, count in left.items() if count)
    if full:
        raise ConfigError(
            f"queues of run {ctx.config.run.name!r} hold messages of an earlier one: {full}",
            hint="--purge drops them, --resume goes on where its run folder is, run.name=... "
            "begins another",
        )
    store = WeightStore.at(ctx.folder.weights(ctx.config))
    async with ctx.waits(
        "the weight store to tell its newest version", deadline_s=ctx.config.deadlines.stall
    ):
        newest = await asyncio.to_thread(store.newest)
    if newest is not None:
        raise ConfigError(
            f"the weight store {store.where} holds version {newest.version} of run {newest.run_id}",
            hint="--purge drops it, or give this run a weights.store of its own",
        )


async def _purge(ctx: RoleContext) -> None:
    dropped = sum([await ctx.broker.purge(queue) for queue in (*_QUEUES, "dead_letters")])
    folder = ctx.folder
    for path in (folder.journal, folder.checkpoints):
        shutil.rmtree(path, ignore_errors=True)
    async with ctx.waits(
        "the weight store to drop an earlier run", deadline_s=ctx.config.deadlines.stall
    ):
        await asyncio.to_thread(WeightStore.at(folder.weights(ctx.config)).clear)
    for path in (folder.metrics, folder.summary, folder.wishes):
        path.unlink(missing_ok=True)
    StepMemory(folder.root).forget()
    if dropped:
        logger.info("purged what an earlier run left: %d messages", dropped)
