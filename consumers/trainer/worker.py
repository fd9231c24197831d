"""The trainer role: trajectories in, weights and credits out.

    fence -> run folder: fresh, or checkpoint + journal -> loop beside its helpers -> farewell

    trajectories --> arrivals --> journal --> ledger --+--> loop: step --> weights --> sync
    evaluations  -->     |                             |
    failures     -->     +--> acknowledge              +--> credits --> producers

The loop itself is drawn in `loop.py`.
"""

import asyncio
import functools
import logging

from infra.roles.context import RoleContext
from infra.roles.errors import ConfigError
from schemas.config import RunConfig

logger = logging.getLogger(__name__)


def check(config: RunConfig) -> list[str]:
    """Validate what the trainer needs, without loading the model.

    Raises:
        ConfigError: The recipe cannot be trained.
    """
    from consumers.trainer.learn.check import check as check_learner
    from infra.runs.folder import RunFolder
    from infra.weights.store import WeightStore

    lines = check_learner(config)
    if config.weights.store:
        store = WeightStore.at(RunFolder.of(config).weights(config))
        store.check()
        lines.append(f"weight store {store.where} is writable")
    return lines


def run(
    config: RunConfig,
    *,
    worker: str | None = None,
    resume: bool = False,
    purge: bool = False,
    skip_step: int | None = None,
) -> int:
    """Run the trainer until the run is over; returns the process's exit code.

    Args:
        resume: Go on with what the run folder holds.
        purge: Begin afresh where an earlier run of this name lies.
        skip_step: Give up this step, which was decided and cannot be taken, and go on behind it.
    """
    from infra.roles.lifecycle import run_role, serve

    body = functools.partial(train, resume=resume, purge=purge, skip_step=skip_step)
    return run_role(serve("trainer", config, body, worker=worker), collect_rarely=False)


async def train(
    ctx: RoleContext, *, resume: bool = False, purge: bool = False, skip_step: int | None = None
) -> None:
    """The role's body."""
    from consumers.trainer.begin import has_history, make_place
    from consumers.trainer.learn.learner import Learner
    from consumers.trainer.learn.lora import load_policy
    from consumers.trainer.recovery import StoppedWhileResuming
    from consumers.trainer.session import Session
    from consumers.trainer.steering.fence import hold_queue
    from infra.roles.fleet.run_folder import describe_run
    from infra.weights.store import WeightStore

    if resume and purge:
        raise ConfigError("--resume and --purge exclude each other")
    if skip_step is not None and not resume:
        raise ConfigError("--skip-step gives up a step of a run that is resumed: add --resume")
    if not await ctx.unless_stopped(hold_queue(ctx)):
        return
    store = WeightStore.at(ctx.folder.weights(ctx.config))
    async with ctx.waits(
        f"the weight store {store.where} to be written to", deadline_s=ctx.config.deadlines.stall
    ):
        await asyncio.to_thread(store.check)
    goes_on = resume and has_history(ctx)
    if not goes_on:
        if resume:
            logger.info("nothing to resume in %s: beginning the run", ctx.folder.root)
        what = "the broker to say what lies in the queues of this run"
        async with ctx.waits(what, deadline_s=ctx.config.deadlines.stall):
            await make_place(ctx, purge=purge)
    await asyncio.to_thread(describe_run, ctx.config, ctx.folder)

    async with ctx.waits("the model to be loaded", deadline_s=ctx.config.deadlines.stall):
        policy = await asyncio.to_thread(load_policy, ctx.config)
    learner = await asyncio.to_thread(Learner, ctx.config, policy)
    try:
        session = await Session.open(ctx, learner, goes_on=goes_on, skip_step=skip_step)
    except StoppedWhileResuming:
        logger.info("told to stop while resuming: nothing was changed")
        return
    try:
        await session.run()
    finally:
        session.close()
