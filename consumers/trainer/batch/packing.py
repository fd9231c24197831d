"""Trajectories to right-padded micro-batches of bounded size."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from schemas.work import Rollout, Trajectory, TurnKind


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """`B` sequences, right-padded to the longest one's `T` tokens.

    Causal attention never looks right, so padding needs no attention mask: padded positions are
    computed and ignored.
    """

    rollout_ids: tuple[str, ...]
    token_ids: NDArray[np.int64]
    """`[B, T]`, 0 where padded."""
    mask: NDArray[np.bool_]
    """`[B, T]`: true where the policy sampled the token."""
    rollout_logprobs: NDArray[np.float32]
    """`[B, T]`: of the behaviour policy, as the engine recorded them; 0 where the mask is false."""
    withheld: NDArray[np.int64] | None = None
    """`[B, T, W]`: tokens that could not be sampled there (stop tokens before `min_tokens`), padded
    with -1; None where there were none anywhere."""
    versions: NDArray[np.int64]
    """`[B, T]`: policy version that sampled the token, -1 where the mask is false."""
    advantages: NDArray[np.float32]
    """`[B]`"""
    num_tokens: int
    """Without padding."""
    num_sampled: int
    """Tokens that the policy sampled: this micro-batch's share of the loss's denominator."""


def pack(
    trajectories: Sequence[Trajectory], advantages: Sequence[float], micro_batch_tokens: int
) -> list[MicroBatch]:
    """Sort by length and cut into micro-batches of at most `micro_batch_tokens`, padding included.

    Equal input gives equal output: ties in length keep their order. A trajectory longer than
    `micro_batch_tokens` gets a micro-batch of its own.

    Raises:
        ValueError: The lengths of `trajectories` and `advantages` differ.
    """
    if len(trajectories) != len(advantages):
        raise ValueError(f"{len(trajectories)} trajectories, {len(advantages)} advantages")
    lengths = [len(trajectory.rollout.progress.tokens) for trajectory in trajectories]
    order = sorted(range(len(trajectories)), key=lambda position: -lengths[position])
    rows: list[list[int]] = []
    for position in order:
        if rows and (len(rows[-1]) + 1) * lengths[rows[-1][0]] <= micro_batch_tokens:
            rows[-1].append(position)
        else:
            rows.append([position])
    return [
        _pad([trajectories[i] for i in chosen], [advantages[i] for i in chosen]) for chosen in rows
    ]


def _pad(trajectories: Sequence[Trajectory], advantages: Sequence[float]) -> MicroBatch:
    tokens = [trajectory.rollout.progress.tokens for trajectory in trajectories]
    shape = (len(tokens), max(len(one) for one in tokens))
    token_ids = np.zeros(shape, dtype=np.int64)
    mask = np.zeros(shape, dtype=np.bool_)
    logprobs = np.zeros(shape, dtype=np.float32)
    versions = np.full(shape, -1, dtype=np.int64)
    for row, one in enumerate(tokens):
        token_ids[row, : len(one)] = one.token_ids
        mask[row, : len(one)] = one.mask_array == 1
        logprobs[row, : len(one)] = one.logprobs
        versions[row, : len(one)] = one.version_array
    return MicroBatch(
        rollout_ids=tuple(trajectory.rollout.rollout_id for trajectory in trajectories),
        token_ids=token_ids,
        mask=mask,
        rollout_logprobs=logprobs,
        withheld=_withheld([trajectory.rollout for trajectory in trajectories], shape),
        versions=versions,
        advantages=np.array(advantages, dtype=np.float32),
        num_tokens=sum(len(one) for one in tokens),
        num_sampled=sum(one.num_sampled for one in tokens),
    )


def _withheld(rollouts: Sequence[Rollout], shape: tuple[int, int]) -> NDArray[np.int64] | None:
    pairs = [(one, one.budgets.min_tokens if one.budgets else 0) for one in rollouts]
    width = max((len(one.stop_token_ids) for one, least in pairs if least), default=0)
    if width == 0:
        return None
    withheld = np.full((*shape, width), -1, dtype=np.int64)
    for row, (one, least) in enumerate(pairs):
        for turn in one.progress.turns:
            if turn.kind is TurnKind.ASSISTANT and least:
                end = min(turn.start + least, turn.stop)
                withheld[row, turn.start : end, : len(one.stop_token_ids)] = one.stop_token_ids
    return withheld
