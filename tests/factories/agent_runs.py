"""Drives one rollout over any number of workers, cutting it where it is told to."""

import asyncio
from collections.abc import Sequence
from typing import Any

from consumers.rollout.agents.loop import AgentLoop
from consumers.rollout.agents.state import CutReason, RolloutState
from consumers.rollout.parsers.hermes import HermesParser
from consumers.rollout.tools.box import ToolBox
from consumers.rollout.tools.calculator import calculator
from infra.text.renderer import Renderer
from schemas.work import Rollout, RolloutTask, Snapshot
from tests.factories.rollouts import Script, ScriptedEngine

OPENING = "<|im_start|>assistant\n"
CALL = '<tool_call>{{"name": "calculator", "arguments": {{"expression": "{}"}}}}</tool_call>'


async def admit() -> None:
    """A gate that is always open."""


def make_loop(
    engine: ScriptedEngine, renderer: Renderer, *, worker: str = "rollout-0", **changes: Any
) -> AgentLoop:
    """An agent loop with the calculator and the Hermes parser."""
    values: dict[str, Any] = {
        "parser": HermesParser(),
        "tools": ToolBox({"calculator": calculator}),
        "admit": admit,
    }
    return AgentLoop(engine=engine, renderer=renderer, worker=worker, **(values | changes))


async def run_uncut(loop: AgentLoop, task: RolloutTask) -> Rollout:
    """The rollout as one worker does it."""
    rollout = await loop.run(loop.begin(task))
    assert isinstance(rollout, Rollout)
    return rollout


async def run_with_cuts(
    task: RolloutTask,
    script: Script,
    renderer: Renderer,
    cuts: Sequence[int],
    *,
    chunk: int = 1,
    versions_rise: bool = False,
    reason: CutReason = CutReason.SYNC,
    engines: list[ScriptedEngine] | None = None,
    **changes: Any,
) -> Rollout:
    """Cut at each of the sequence lengths in turn; every fragment runs on a worker of its own.

    What is handed over travels as JSON.
    """
    work: RolloutTask | Snapshot = task
    for number in range(len(cuts) + 1):
        engine = ScriptedEngine(
            script,
            chunk=chunk,
            pause_at=cuts[number : number + 1],
            version=number if versions_rise else 0,
        )
        if engines is not None:
            engines.append(engine)
        loop = make_loop(engine, renderer, worker=f"rollout-{number}", **changes)
        state = loop.restore(work) if isinstance(work, Snapshot) else loop.begin(work)
        result = await run_until_paused(loop, state, engine, reason)
        if isinstance(result, Rollout):
            return Rollout.model_validate_json(result.model_dump_json())
        work = type(result).model_validate_json(result.model_dump_json())
    raise AssertionError("cut more often than asked")


async def run_until_paused(
    loop: AgentLoop, state: RolloutState, engine: ScriptedEngine, reason: CutReason
) -> Rollout | Snapshot | RolloutTask:
    """Run until the engine stands still, then cut."""
    running = asyncio.ensure_future(loop.run(state))
    pausing = asyncio.ensure_future(engine.paused.wait())
    await asyncio.wait({running, pausing}, return_when=asyncio.FIRST_COMPLETED)
    pausing.cancel()
    if not running.done():
        await loop.cut(state, reason)
    return await asyncio.wait_for(running, 10)


def essence(rollout: Rollout) -> dict[str, Any]:
    """Everything of a rollout that an interruption must not change."""
    progress = rollout.progress
    return {
        "token_ids": progress.tokens.token_ids.tolist(),
        "logprobs": progress.tokens.logprobs.tolist(),
        "mask": progress.tokens.mask,
        "versions": progress.tokens.versions,
        "turns": progress.turns,
        "messages": progress.messages,
        "results": [(r.call, r.content, r.ok) for r in progress.tool_results],
        "num_prompt_tokens": progress.num_prompt_tokens,
        "status": rollout.status,
        "finish_reason": rollout.finish_reason,
    }


def cut_places(rollout: Rollout) -> list[int]:
    """Every sequence length at which the rollout was in the engine."""
    places: set[int] = set()
    for turn in rollout.progress.turns:
        if turn.kind == "assistant":
            places.update(range(turn.start, turn.stop + 1))
    return sorted(places)
