"""Advantages of a group's members from their rewards: `float64[G] -> float64[G]`.

A group of one has no baseline to compare with: its mean counts as 0 and its deviation as 1.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from consumers.trainer.batch.filters import zero_variance
from consumers.trainer.batch.groups import Group
from infra.roles.registry import register, resolve

Rewards = NDArray[np.float64]
Estimator = Callable[[Rewards], Rewards]

STD_EPSILON = 1e-6


@register("advantages", "grpo")
def grpo(rewards: Rewards) -> Rewards:
    """`(R - mean) / (std + 1e-6)` with the sample deviation (DeepSeekMath 2402.03300)."""
    rewards = np.asarray(rewards, dtype=np.float64)
    if rewards.size < 2:
        return rewards / (1.0 + STD_EPSILON)
    return dr_grpo(rewards) / (float(rewards.std(ddof=1)) + STD_EPSILON)


@register("advantages", "dr_grpo")
def dr_grpo(rewards: Rewards) -> Rewards:
    """`R - mean` (Dr. GRPO 2503.20783)."""
    rewards = np.asarray(rewards, dtype=np.float64)
    if rewards.size < 2:
        return rewards.copy()
    if zero_variance(rewards):
        # The mean rounds; AdamW would scale even 1e-16 up to a full step.
        return np.zeros_like(rewards)
    centred: Rewards = rewards - rewards.mean()
    return centred


@register("advantages", "rloo")
def rloo(rewards: Rewards) -> Rewards:
    """`R - mean of the others` (2402.14740), which is `G / (G - 1)` times `dr_grpo`."""
    rewards = np.asarray(rewards, dtype=np.float64)
    if rewards.size < 2:
        return rewards.copy()
    return dr_grpo(rewards) * (rewards.size / (rewards.size - 1))


def advantages_of(groups: Sequence[Group], name: str) -> list[float]:
    """One advantage per trajectory, in the order of the groups and their members.

    Args:
        groups: Of one batch.
        name: Of a registered estimator, or an import path.

    Raises:
        ConfigError: There is no such estimator.
    """
    estimator: Estimator = resolve("advantages", name)
    return [float(value) for group in groups for value in estimator(group.rewards)]
