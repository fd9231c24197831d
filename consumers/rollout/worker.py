"""The rollout role.

    run id, first version -> engine starts -> +-- intake: cancel_queue, eval_prompts, prompts
                                              +-- sync:   new weights -> cut, confirm, swap
                                              +-- sweep:  snapshot interval, lost deliveries
                                              +-- drain:  on the trainer's word, hand over, go on
    slots: task or snapshot -> agent loop -> rollout | snapshot | plain task | failure
                                             published, confirmed, then acknowledged
    SIGTERM       -> cut all, confirm, 0       (broker away: 7)
    run is over   -> 0 at once
    engine dies or hangs         -> hand over what can be, 1
    a wait outlives its deadline -> the same, 5               (if `on_deadline` is `stop`)
    agent code never returns     -> 1 at once, by the watchdog

This is the boundary at which whatever goes wrong in one of the loops ends the role.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from consumers.rollout.engines.base import Engine
from consumers.rollout.engines.build import check_engine, check_server, held_weights
from consumers.rollout.floor import Floor, build_floor
from consumers.rollout.limits import Limits
from consumers.rollout.updates.gate import Gate
from consumers.rollout.watchdog import Watchdog
from infra.roles.context import RoleContext
from infra.roles.errors import ConfigError
from infra.roles.lifecycle import run_role, serve
from infra.roles.newest import newest_manifest
from infra.roles.registry import resolve
from infra.weights.local.cache import check_place
from infra.weights.store import WeightStore
from schemas.config import RunConfig
from schemas.control import Wanted, WeightsPublished
from schemas.work import RolloutTask

if TYPE_CHECKING:
    from consumers.rollout.agents.loop import AgentLoop
    from consumers.rollout.parsers.base import ToolParser
    from consumers.rollout.tools.box import ToolBox
    from infra.text.renderer import Renderer

logger = logging.getLogger(__name__)

ROLE = "rollout"
_CLOSE_S = 10.0
_SETTLE_S = 1.0

BuildEngine = Callable[[RunConfig], Engine]
MakeLoop = Callable[[RoleContext, Engine, Gate], "AgentLoop"]


def run(config: RunConfig, *, worker: str | None = None) -> int:
    """Turn tasks into rollouts until told to stop; returns the exit code."""
    return run_role(serve(ROLE, config, body, worker=worker))


def check(config: RunConfig) -> list[str]:
    """Read the model folder, and find the agent, the parser and the tools; no engine starts.

    A server that is given as the engine is asked what it is.

    Raises:
        ConfigError: What is wrong, and what would be right.
    """
    check_engine(config)
    check_server(config)
    check_place(config.weights.cache)
    rollout = config.rollout
    renderer, parser, tools = loop_parts(config)
    tools.specs(rollout.tools)
    parser.stop_token_ids(renderer)
    named = ", ".join(rollout.tools) or "none"
    return [
        f"chat template fits the agent, {renderer.vocab_size} tokens: {config.model.path}",
        f"engine {rollout.engine}, agent {rollout.agent}, parser {rollout.parser}, tools: {named}",
    ]


def prompt_ids(config: RunConfig, task: RolloutTask) -> list[int]:
    """A task's prompt as the engine would get it.

    Raises:
        ConfigError: It names a tool that this worker has not, or cannot be rendered.
    """
    from consumers.rollout.agents.record import new_state
    from consumers.rollout.tools.box import ToolBox
    from infra.text.renderer import Renderer

    agent = new_state(task).agent
    tools = ToolBox.load(config.rollout.tools, timeout_s=config.rollout.tool_timeout)
    specs = tools.specs(task.tools if agent.uses_tools else ())
    return Renderer.load(Path(config.model.path)).prompt(list(agent.opening()), specs)


def answer_ids(config: RunConfig, text: str) -> list[int]:
    """An assistant turn that says `text`, as the policy would write it, with its end.

    Raises:
        ConfigError: The model folder has no tokenizer.
    """
    from infra.text.renderer import Renderer

    return Renderer.load(Path(config.model.path)).answer(text)


async def body(context: RoleContext) -> None:
    """The role's body."""
    await serve_rollouts(context)


async def serve_rollouts(
    context: RoleContext,
    *,
    limits: Limits | None = None,
    build_engine: BuildEngine | None = None,
    make_loop: MakeLoop | None = None,
) -> None:
    """Wait for weights, work, hand over.

    Args:
        context: Of the role.
        limits: From the recipe if None.
        build_engine: Makes the engine; from the recipe if None.
        make_loop: Makes the agent loop; from the recipe if None.

    Raises:
        LeftWithoutHandover: Told to stop, but the broker did not take everything.
        EngineFailed: The engine died or hangs.
        DeadlinePassed: A wait outlived its deadline, and `on_deadline` is `stop`.
    """
    config = context.config
    if not await context.unless_stopped(context.run_id()):
        return
    # in threads: importing what they need takes seconds, and control must not wait for it
    gate = Gate()
    async with context.waits("the engine to be imported", deadline_s=config.deadlines.stall):
        engine = await asyncio.to_thread(build_engine or _build_engine, config)
        loop = await asyncio.to_thread(make_loop or _make_loop, context, engine, gate)
    weights = held_weights(config, WeightStore.at(context.folder.weights(config)))

    async def newest(below: int | None = None) -> WeightsPublished | None:
        manifest = await newest_manifest(context.folder, config, below=below)
        ours = manifest is not None and manifest.run_id == context.known_run_id
        return manifest if ours else None

    floor = build_floor(
        context,
        engine=engine,
        loop=loop,
        gate=gate,
        limits=limits or Limits.of(config),
        newest=newest,
        weights=weights,
    )
    context.heartbeat(floor.describe)
    context.on_weights(floor.sync.hear)
    context.on_run_state(floor.hear_run_state)
    context.settling(floor.stands)
    try:
        if await context.unless_stopped(_start(context, floor)):
            with Watchdog(floor.limits.stall_timeout_s):
                await _work(context, floor)
    finally:
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await engine.close()
        finally:
            await asyncio.to_thread(weights.close)


async def _start(context: RoleContext, floor: Floor) -> None:
    weights = await floor.sync.first()
    async with context.waits("the engine to start", deadline_s=floor.limits.stall_s):
        await floor.swap.start(weights)
    await floor.sync.settle(weights.version, taken=True)
    logger.info(
        "serving version %d · %d slots · fingerprint %s",
        floor.swap.version,
        floor.slots.size,
        floor.swap.fingerprint,
    )


async def _work(context: RoleContext, floor: Floor) -> None:
    intake = asyncio.create_task(floor.intake.run(), name="intake")
    sync = asyncio.create_task(floor.sync.run(), name="sync")
    sweep = asyncio.create_task(floor.sweep.run(), name="sweep")
    drain = asyncio.create_task(_drain_on_request(floor), name="drain")
    stopping = asyncio.create_task(context.stop.wait(), name="stop")
    loops: list[asyncio.Task[None]] = [intake, sync, sweep, drain]
    try:
        ends: set[asyncio.Future[Any]] = {*loops, stopping, floor.failed}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        broken = [task for task in loops if task.done()]
        floor.holds.put("leaving", "leaving")
        await floor.intake.settle(_SETTLE_S)
        await _cancelled([intake, drain])
        if not floor.swap.swapping:
            await _cancelled([sync])
        if _run_is_over(context):
            return
        if floor.failed.done() or any(task.exception() for task in broken):
            await _leave_broken(floor, broken)
        await floor.departure.leave()
        _tell_what_broke(floor, loops)
    finally:
        floor.runner.end_cuts()
        await _cancelled([*loops, stopping, *floor.runner.tasks])


def _tell_what_broke(floor: Floor, loops: "list[asyncio.Task[None]]") -> None:
    """What breaks while all is handed over changes nothing any more, but is no secret."""
    ended = [task for task in loops if task.done() and not task.cancelled()]
    errors = [error for task in ended if (error := task.exception()) is not None]
    errors += [floor.failed.result()] if floor.failed.done() else []
    for error in errors:
        logger.error("broke while handing over: %s", error)


async def _leave_broken(floor: Floor, broken: "list[asyncio.Task[None]]") -> None:
    """Hand over what can be handed over, then fail with the reason.

    Raises:
        BaseException: The reason.
    """
    errors = [error for task in broken if (error := task.exception()) is not None]
    reason = errors[0] if errors else floor.failed.result()
    logger.error("handing over, then leaving: %s", reason)
    floor.runner.leaving = True
    await floor.departure.hand_over(final=True)
    raise reason


async def _drain_on_request(floor: Floor) -> None:
    while True:
        await floor.drain_wanted.wait()
        floor.drain_wanted.clear()
        if len(floor.slots):
            await floor.departure.hand_over(final=False)


def _run_is_over(context: RoleContext) -> bool:
    """Whether nobody needs what is held: a run that was stopped half-way may be resumed."""
    state = context.run_state
    if state is None or state.wanted is not Wanted.STOPPED:
        return False
    return state.step >= state.num_steps


async def _cancelled(tasks: "Iterable[asyncio.Task[Any]]") -> None:
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def loop_parts(config: RunConfig) -> "tuple[Renderer, ToolParser, ToolBox]":
    """What an agent loop is made of.

    Raises:
        ConfigError: Agent, parser or a tool is not there, the agent has no use for the tools, or
            the chat template cannot append what answers the agent.
    """
    from consumers.rollout.agents.base import Agent
    from consumers.rollout.tools.box import ToolBox
    from infra.text.renderer import Renderer

    rollout = config.rollout
    agent = resolve("agent", rollout.agent)
    if not (isinstance(agent, type) and issubclass(agent, Agent)):
        raise ConfigError(
            f"[rollout] agent {rollout.agent!r} is no Agent",
            hint="subclass consumers.rollout.agents.base.Agent",
        )
    if rollout.tools and not agent.uses_tools:
        raise ConfigError(
            f"[rollout] tools = {list(rollout.tools)}, but agent {rollout.agent!r} uses none",
            hint='set agent = "tool", or leave tools out',
        )
    tools = ToolBox.load(rollout.tools, timeout_s=rollout.tool_timeout)
    renderer = Renderer.load(Path(config.model.path))
    renderer.check(agent.answered_by())
    found = resolve("parser", rollout.parser)
    parser: ToolParser = found() if isinstance(found, type) else found
    return renderer, parser, tools


def _build_engine(config: RunConfig) -> Engine:
    from consumers.rollout.engines.build import build_engine

    return build_engine(config)


def _make_loop(context: RoleContext, engine: Engine, gate: Gate) -> "AgentLoop":
    from consumers.rollout.agents.loop import AgentLoop

    renderer, parser, tools = loop_parts(context.config)
    return AgentLoop(
        engine=engine,
        renderer=renderer,
        parser=parser,
        tools=tools,
        worker=context.worker,
        admit=gate.admit,
    )
