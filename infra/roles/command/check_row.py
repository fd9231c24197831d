"""The first row on its way through the rooms: prompt, length, reward of its own answer."""

from typing import Protocol

import numpy as np

from infra.roles.errors import ConfigError
from schemas.chat import ChatMessage, Speaker
from schemas.config import RunConfig
from schemas.tokens import Tokens
from schemas.work import (
    Progress,
    Rollout,
    RolloutStatus,
    RolloutTask,
    Turn,
    TurnKind,
)


class Producer(Protocol):
    """What the check asks of the producer's module."""

    def first_task(self, config: RunConfig) -> RolloutTask:
        """Row 0 of `data.train` as a task."""


class RolloutWorker(Protocol):
    """What the check asks of the rollout worker's module."""

    def prompt_ids(self, config: RunConfig, task: RolloutTask) -> list[int]:
        """The prompt as the engine gets it."""

    def answer_ids(self, config: RunConfig, text: str) -> list[int]:
        """An assistant turn that says `text`, with its end."""


class Score(Protocol):
    """What a reward came to."""

    @property
    def reward(self) -> float:
        """The weighted sum."""


class RewardWorker(Protocol):
    """What the check asks of the reward worker's module."""

    def try_out(self, config: RunConfig, rollout: Rollout) -> Score:
        """Score one rollout as the role would."""


def check_prompt(config: RunConfig, producer: Producer, worker: RolloutWorker) -> str:
    """Row 0 fits into the prompt budget.

    Raises:
        ConfigError: It does not, or cannot be rendered.
    """
    num_tokens = len(worker.prompt_ids(config, producer.first_task(config)))
    most = config.rollout.max_prompt_tokens
    if num_tokens > most:
        raise ConfigError(
            f"the prompt of row 0 has {num_tokens} tokens, rollout.max_prompt_tokens is {most}",
            hint=f"longer prompts are data failures: use at least {num_tokens}, or shorter prompts",
        )
    return f"row 0 renders to {num_tokens} tokens (at most {most})"


def check_gold(
    config: RunConfig, producer: Producer, worker: RolloutWorker, rewards: RewardWorker
) -> str:
    """The reward functions take the row's own answer.

    Raises:
        WarrenError: One raises, hangs or gives no number.
    """
    task = producer.first_task(config)
    gold = task.reward_data.ground_truth
    if gold is None:
        return "row 0 has no ground truth: the reward functions were not tried"
    text = gold if isinstance(gold, str) else str(gold)
    rollout = gold_rollout(
        task, worker.prompt_ids(config, task), text, worker.answer_ids(config, text)
    )
    reward = rewards.try_out(config, rollout).reward
    advice = "" if reward > 0 else ": do the functions expect more than the bare answer?"
    return f"the answer of row 0, {text[:40]!r}, scores {reward:g}{advice}"


def gold_rollout(
    task: RolloutTask, prompt_ids: list[int], answer: str, answer_ids: list[int]
) -> Rollout:
    """A rollout that says nothing but the answer."""
    ids = np.array([*prompt_ids, *answer_ids], dtype=np.int32)
    num_prompt, num_answer = len(prompt_ids), len(answer_ids)
    progress = Progress(
        num_prompt_tokens=num_prompt,
        turns=(
            Turn(kind=TurnKind.PROMPT, start=0, stop=num_prompt),
            Turn(
                kind=TurnKind.ASSISTANT,
                start=num_prompt,
                stop=num_prompt + num_answer,
                finish_reason="stop",
            ),
        ),
        messages=(*task.messages, ChatMessage(role=Speaker.ASSISTANT, content=answer)),
        tokens=Tokens(
            mask=((0, num_prompt), (1, num_answer)),
            versions=((-1, num_prompt), (0, num_answer)),
            token_ids=ids,
            logprobs=np.zeros(len(ids), dtype=np.float32),
        ),
    )
    return Rollout(
        rollout_id=task.rollout_id,
        group=task.group,
        index=task.index,
        purpose=task.purpose,
        row=task.row,
        status=RolloutStatus.COMPLETED,
        finish_reason="stop",
        worker="check",
        agent=task.agent,
        prompt_hash=task.prompt_hash,
        reward_data=task.reward_data,
        progress=progress,
    )
