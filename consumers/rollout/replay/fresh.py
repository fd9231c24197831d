"""A rollout generated anew: a real engine, the tools as the worker runs them, nothing recorded."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from consumers.rollout.engines.base import Engine
from consumers.rollout.engines.build import build_engine
from consumers.rollout.replay.task import open_as_recorded
from infra.roles.errors import DeadlinePassed, WarrenError
from infra.weights.prepared import PreparedWeights
from schemas.config import RunConfig
from schemas.work import Rollout, RolloutTask

WORKER = "replay"
_CLOSE_S = 10.0


async def generate(
    config: RunConfig,
    weights: PreparedWeights,
    task: RolloutTask,
    *,
    recorded: Rollout | None = None,
) -> Rollout:
    """Do a task once more, uncut.

    Args:
        config: Says engine, agent, parser and tools.
        weights: To serve.
        task: With the seed to sample with.
        recorded: The rollout that it came to, where the task was made from that.

    Raises:
        RolloutFailed: It failed.
        EngineFailed: The engine did.
        DeadlinePassed: It took longer than `deadlines.stall`.
    """
    from consumers.rollout.agents.loop import AgentLoop
    from consumers.rollout.worker import loop_parts

    renderer, parser, tools = await asyncio.to_thread(loop_parts, config)
    async with _started(config, weights) as engine:
        loop = AgentLoop(
            engine=engine,
            renderer=renderer,
            parser=parser,
            tools=tools,
            worker=WORKER,
            admit=_at_once,
        )
        state = loop.begin(task)
        if recorded is not None:
            open_as_recorded(state, recorded)
        async with _limited(config, f"rollout {task.rollout_id}"):
            outcome = await loop.run(state)
    if not isinstance(outcome, Rollout):
        raise WarrenError(f"{task.rollout_id} was cut, and nobody asked for that")
    return outcome


@asynccontextmanager
async def _started(config: RunConfig, weights: PreparedWeights) -> AsyncIterator[Engine]:
    alone = config.model_copy(update={"rollout": config.rollout.model_copy(update={"slots": 1})})
    engine = await asyncio.to_thread(build_engine, alone)
    try:
        async with _limited(config, "the engine to start"):
            await engine.start(weights)
        yield engine
    finally:
        with suppress(TimeoutError):  # what it has generated is worth more than a good end
            async with asyncio.timeout(_CLOSE_S):
                await engine.close()


@asynccontextmanager
async def _limited(config: RunConfig, what: str) -> AsyncIterator[None]:
    limit = config.deadlines.stall
    try:
        async with asyncio.timeout(limit) as timeout:
            yield
    except TimeoutError:
        if not timeout.expired():
            raise
        raise DeadlinePassed(
            f"waited {limit:g} s for {what}", hint="raise it with --set deadlines.stall=SECONDS"
        ) from None


async def _at_once() -> None:
    """No weights are swapped: every request is admitted."""
