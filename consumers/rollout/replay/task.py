"""The task of a recorded rollout."""

from collections.abc import Sequence

from consumers.rollout.agents.state import RolloutState
from infra.runs.asked import budgets_of, prompt_hash, sampling_of
from schemas.chat import ChatMessage, Speaker
from schemas.config import RunConfig
from schemas.work import Rollout, RolloutTask, TurnKind


def task_of(rollout: Rollout, config: RunConfig) -> RolloutTask:
    """What it was asked: from the rollout itself, and where that does not say, from the recipe."""
    return RolloutTask(
        rollout_id=rollout.rollout_id,
        group=rollout.group,
        index=rollout.index,
        purpose=rollout.purpose,
        row=rollout.row,
        agent=rollout.agent,
        messages=tuple(opening_of(rollout)),
        prompt_hash=rollout.prompt_hash,
        tools=config.rollout.tools if rollout.tools is None else rollout.tools,
        sampling=rollout.sampling or sampling_of(config, rollout.purpose),
        budgets=rollout.budgets or budgets_of(config),
        reward_data=rollout.reward_data,
    )


def opening_of(rollout: Rollout) -> Sequence[ChatMessage]:
    """The messages that the prompt was rendered from: those before the policy's first turn."""
    messages = rollout.progress.messages
    left = sum(turn.kind is TurnKind.ASSISTANT for turn in rollout.progress.turns)
    for place in range(len(messages) - 1, -1, -1):
        left -= messages[place].role is Speaker.ASSISTANT
        if left <= 0:
            return messages[:place]
    return messages


def open_as_recorded(state: RolloutState, rollout: Rollout) -> None:
    """Let an agent that renders its prompt from other messages than its task's say them once more.

    The task's own messages are not recorded then: their hash tells.
    """
    opening = opening_of(rollout)
    if prompt_hash(opening) != rollout.prompt_hash:
        state.agent.opening = lambda: opening  # type: ignore[method-assign]
