"""Groups of trajectories, and whether a trajectory can be trained on at all."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from schemas.headers import Purpose, rollout_id_of
from schemas.work import Trajectory

MAX_LOGPROB = 1e-3
"""Engines round: a logprob a little above 0 is noise, more is another quantity."""

MAX_REWARD = 1e9
"""Advantages are float32, and squares of them are summed: a larger reward is a broken one. The sum
of an evaluation's rewards must be finite, too."""


def why_no_reward(reward: float) -> str | None:
    """Why nothing can be computed from a reward, or None when it can."""
    return (
        f"the reward is {reward:.4g}, beyond {MAX_REWARD:g}" if abs(reward) > MAX_REWARD else None
    )


def why_unusable(
    trajectory: Trajectory,
    *,
    newest_version: int | None = None,
    vocab_size: int | None = None,
) -> str | None:
    """Why a trajectory cannot be trained on, or None when it can.

    Lengths and finiteness are already held by the schema.

    Args:
        trajectory: As it was decoded.
        newest_version: Newest published policy version; no token can be newer.
        vocab_size: Of the policy; no token id can reach it.
    """
    rollout = trajectory.rollout
    tokens = rollout.progress.tokens
    expected_id = rollout_id_of(Purpose.TRAIN, rollout.group, rollout.index)
    if rollout.rollout_id != expected_id:
        return f"rollout_id is {rollout.rollout_id!r}, group and index say {expected_id!r}"
    if (reason := why_no_reward(trajectory.reward)) is not None:
        return reason
    if tokens.num_sampled == 0:
        return "the policy sampled no token"
    if rollout.progress.num_prompt_tokens == 0:
        return "the prompt is empty: the first sampled token has nothing to be predicted from"
    if tokens.mask_array[: rollout.progress.num_prompt_tokens].any():
        return "the response mask covers prompt tokens"
    highest = float(tokens.logprobs.max())
    if highest > MAX_LOGPROB:
        return f"a rollout logprob is {highest:.4g}, above 0"
    newest = tokens.newest_version
    if newest_version is not None and newest is not None and newest > newest_version:
        return f"tokens claim version {newest}, the newest published is {newest_version}"
    if vocab_size is not None and (top := int(tokens.token_ids.max())) >= vocab_size:
        return f"token id {top} is outside the vocabulary of {vocab_size}"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The usable members of one group, by index: a batch never depends on order of arrival."""

    number: int
    members: tuple[Trajectory, ...]

    @classmethod
    def of(cls, number: int, trajectories: Iterable[Trajectory]) -> Self:
        """Order trajectories into a group.

        Raises:
            ValueError: One belongs to another group, or two have the same index.
        """
        members = tuple(sorted(trajectories, key=lambda member: member.rollout.index))
        strangers = [m.rollout.rollout_id for m in members if m.rollout.group != number]
        if strangers:
            raise ValueError(f"{strangers} do not belong to group {number}")
        if len({member.rollout.index for member in members}) != len(members):
            raise ValueError(f"group {number} holds two members of one index")
        return cls(number=number, members=members)

    @property
    def rewards(self) -> NDArray[np.float64]:
        """`float64[G]`, by index."""
        return np.array([member.reward for member in self.members], dtype=np.float64)
