"""Objectives: pure functions from log-probabilities to a loss per token, to be minimised."""

from collections.abc import Callable

import torch
from torch import Tensor

from infra.roles.registry import register

MAX_LOG_RATIO = 20.0
"""Beyond it the ratio is cut off: an infinite one would make 0 * inf of a clipped gradient."""

Objective = Callable[[Tensor, Tensor, Tensor, Tensor, float, float, float], Tensor]


@register("objective", "ppo_clip")
def ppo_clip(
    new_logprobs_T: Tensor,
    rollout_logprobs_T: Tensor,
    advantages_T: Tensor,
    mask_T: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float,
) -> Tensor:
    """Clipped policy ratio against the behaviour policy, with dual clip.

    `max(-rho A, -clip(rho; 1 - low, 1 + high) A)`, and for negative `A` at most `-c A`, where
    `rho = exp(new - rollout)` (PPO 1707.06347; asymmetric bounds DAPO 2503.14476; dual clip
    1912.09729).

    Args:
        new_logprobs_T: `[T]`, of the policy being trained; the gradient flows through these alone.
        rollout_logprobs_T: `[T]`, as the engine recorded them when it sampled.
        advantages_T: `[T]`
        mask_T: `[T]`, false where a token must not count.
        clip_low: The ratio's floor is 1 - this.
        clip_high: The ratio's ceiling is 1 + this.
        dual_clip: `c` above; infinity turns it off.

    Returns:
        `[T]`, 0 where the mask is false.
    """
    ratio = log_ratio(new_logprobs_T, rollout_logprobs_T).exp()
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss = torch.maximum(-ratio * advantages_T, -clipped * advantages_T)
    bounded = torch.minimum(loss, -dual_clip * advantages_T)
    loss = torch.where(advantages_T < 0, bounded, loss)
    return torch.where(mask_T, loss, torch.zeros_like(loss))


def log_ratio(new_logprobs_T: Tensor, rollout_logprobs_T: Tensor) -> Tensor:
    """`new - rollout`, within what `exp` can represent."""
    return (new_logprobs_T - rollout_logprobs_T).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def token_mean(loss_T: Tensor, num_tokens: int) -> Tensor:
    """A micro-batch's share of the mean over all `num_tokens` sampled tokens of the whole batch.

    The denominator is the batch's, not the micro-batch's: the shares add up to the same loss
    however the batch is split.
    """
    return loss_T.sum() / num_tokens
