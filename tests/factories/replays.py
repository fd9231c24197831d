"""Recorded rollouts that are replayed, and changed, and written to a journal as a run leaves it."""

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from consumers.rollout.agents.loop import AgentLoop
from consumers.rollout.parsers.base import ToolParser
from consumers.rollout.parsers.hermes import HermesParser
from consumers.rollout.replay.exact import Replayed, Stage
from consumers.rollout.replay.parts import RecordedEngine, RecordedTools
from consumers.rollout.tools.tool import Tool
from infra.amqp.codec import encode
from infra.runs.journal import Journal
from infra.text.renderer import Renderer
from schemas.headers import Headers
from schemas.journal import Arrived, Opened
from schemas.work import Rollout, RolloutTask, Trajectory
from tests.factories.agent_runs import admit


def stage(renderer: Renderer, tools: dict[str, Tool], *, parser: ToolParser | None = None) -> Stage:
    """Where rollouts of these tools are replayed."""
    recorded = RecordedTools(tools)

    def make_loop(engine: RecordedEngine, worker: str) -> AgentLoop:
        return AgentLoop(
            engine=engine,
            renderer=renderer,
            parser=parser or HermesParser(),
            tools=recorded,
            worker=worker,
            admit=admit,
        )

    return Stage(renderer=renderer, tools=recorded, make_loop=make_loop)


async def replay(on: Stage, rollout: Rollout, task: RolloutTask) -> Replayed:
    """Replay one; a replay never waits for anything."""
    return await asyncio.wait_for(on.replay(rollout, task), 10)


def changed(rollout: Rollout, change: Callable[[dict[str, Any]], None]) -> Rollout:
    """A copy whose JSON was changed in place."""
    raw = rollout.model_dump(mode="json")
    tokens = rollout.progress.tokens
    raw["progress"]["tokens"] |= {
        "token_ids": tokens.token_ids.tolist(),
        "logprobs": tokens.logprobs.tolist(),
    }
    change(raw)
    return Rollout.model_validate(raw)


def journal(folder: Path, trajectories: Iterable[Trajectory]) -> Journal:
    """A trainer's journal in which these have arrived; `append` more, `close` it."""
    written = Journal(folder, Opened(run_id="r", incarnation=1, step=0))
    for trajectory in trajectories:
        written.append(*arrival(trajectory))
    return written


def arrival(trajectory: Trajectory) -> tuple[Arrived, bytes]:
    """As it is journaled."""
    rollout = trajectory.rollout
    headers = Headers(
        run_id="r",
        purpose=rollout.purpose,
        group=rollout.group,
        index=rollout.index,
        rollout_id=rollout.rollout_id,
    )
    envelope, body = encode(
        trajectory, app_id="test", correlation_id="", headers=headers.to_amqp(), message_id="m"
    )
    record = Arrived(
        type=envelope.type,
        message_id=envelope.message_id,
        rollout_id=rollout.rollout_id,
        group=rollout.group,
        index=rollout.index,
        purpose=rollout.purpose,
        reward=trajectory.reward,
        content_encoding=envelope.content_encoding,
        headers=dict(envelope.headers),
    )
    return record, body
