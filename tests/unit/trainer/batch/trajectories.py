"""Trajectories and recipes for the tests of batch and learn."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from schemas.arrays import to_runs
from schemas.config import RunConfig
from schemas.tokens import Tokens
from schemas.work import (
    Budgets,
    Interruption,
    Progress,
    Purpose,
    RewardData,
    Rollout,
    RolloutStatus,
    ToolResult,
    Trajectory,
    Turn,
)


def trajectory(
    *,
    group: int = 0,
    index: int = 0,
    token_ids: Sequence[int],
    mask: Sequence[int],
    logprobs: Sequence[float] | None = None,
    versions: Sequence[int] | None = None,
    reward: float = 0.0,
    num_prompt_tokens: int | None = None,
    status: RolloutStatus = RolloutStatus.COMPLETED,
    rewards: dict[str, float] | None = None,
    interruptions: tuple[Interruption, ...] = (),
    turns: tuple[Turn, ...] = (),
    tool_results: tuple[ToolResult, ...] = (),
    **progress: Any,
) -> Trajectory:
    """Logprobs default to -1 and versions to 0 where the mask is 1."""
    if num_prompt_tokens is None:
        num_prompt_tokens = list(mask).index(1)
    if logprobs is None:
        logprobs = [-1.0 if one else 0.0 for one in mask]
    if versions is None:
        versions = [0 if one else -1 for one in mask]
    return Trajectory(
        reward=reward,
        rewards=rewards or {},
        rollout=Rollout(
            rollout_id=f"{group}.{index}",
            group=group,
            index=index,
            purpose=Purpose.TRAIN,
            row=group,
            status=status,
            finish_reason="stop",
            worker="rollout-1",
            agent="single_turn",
            prompt_hash="",
            reward_data=RewardData(),
            progress=Progress(
                num_prompt_tokens=num_prompt_tokens,
                interruptions=interruptions,
                turns=turns,
                tool_results=tool_results,
                tokens=Tokens(
                    mask=to_runs(mask),
                    versions=to_runs(versions),
                    token_ids=np.array(token_ids),
                    logprobs=np.array(logprobs),
                ),
                **progress,
            ),
        ),
    )


def random_trajectories(
    count: int, *, seed: int, vocab_size: int, longest: int = 30
) -> list[Trajectory]:
    """Of unequal lengths, half of them with a span of tool tokens inside the response."""
    random = np.random.default_rng(seed)
    made = []
    for index in range(count):
        prompt = int(random.integers(1, 9))
        response = int(random.integers(4, longest - prompt))
        mask = [0] * prompt + [1] * response
        if index % 2:
            mask[prompt + 1 : prompt + 3] = [0, 0]
        draws = random.uniform(-6.0, -0.05, len(mask))
        made.append(
            trajectory(
                group=index // 4,
                index=index % 4,
                token_ids=random.integers(3, vocab_size, len(mask)).tolist(),
                mask=mask,
                logprobs=(draws * mask).tolist(),
                versions=[index % 3 if one else -1 for one in mask],
                reward=float(random.integers(0, 2)),
            )
        )
    return made


def recipe(**sections: dict[str, Any]) -> RunConfig:
    """A small recipe; keyword arguments are merged into its sections."""
    base: dict[str, dict[str, Any]] = {
        "run": {"name": "test", "steps": 10},
        "model": {"path": "model", "dtype": "float32"},
        "data": {"train": [{"path": "train.jsonl"}]},
        "reward": {"functions": [{"use": "exact"}]},
        "trainer": {"lr": 1e-3, "warmup_steps": 0},
    }
    for name, keys in sections.items():
        base[name] = base.get(name, {}) | keys
    return RunConfig.model_validate(base)


def held(one: Trajectory, *, min_tokens: int, stop_token_ids: tuple[int, ...]) -> Trajectory:
    """It, sampled so that none of these ends a turn among its first so many tokens."""
    budgets = Budgets(
        max_prompt_tokens=1000,
        max_response_tokens=1000,
        max_turn_tokens=1000,
        max_turns=8,
        min_tokens=min_tokens,
    )
    changes = {"budgets": budgets, "stop_token_ids": stop_token_ids}
    return one.model_copy(update={"rollout": one.rollout.model_copy(update=changes)})
