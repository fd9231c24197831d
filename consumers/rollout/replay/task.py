"""The task of a recorded rollout."""

from collections.abc import Sequence

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


def opens_by_itself(rollout: Rollout) -> bool:
    """Whether the agent rendered its prompt from other messages than those of its task."""
    return prompt_hash(opening_of(rollout)) != rollout.prompt_hash
