"""Log-probabilities of sampled tokens under the policy being trained."""

from typing import Any

import torch
from torch import Tensor

from consumers.trainer.learn.sampled_from import SampledFrom

ENTROPY_ROWS = 1024
"""Rows whose entropy is computed at a time: bounds the extra memory at a large vocabulary."""


def sampled_logprobs(
    model: Any,
    token_ids_BT: Tensor,
    mask_BT: Tensor,
    sampled_from: SampledFrom,
    withheld_BTW: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One forward pass over right-padded sequences.

    The language-model head is applied only to columns from which some sequence sampled.

    Args:
        model: A Hugging Face causal language model.
        token_ids_BT: `int64[B, T]`
        mask_BT: `bool[B, T]`, true where the policy sampled the token; false in column 0.
        sampled_from: What the tokens were sampled from.
        withheld_BTW: `int64[B, T, W]`, tokens that could not be sampled, padded with -1; None for
            none.

    Returns:
        Log-probabilities `float32[N]` and entropies `float32[N]` (without gradient) of the `N`
        sampled tokens, in row-major order: that of `x_BT[mask_BT]`.
    """
    sampled_BS = mask_BT[:, 1:]
    columns_C = sampled_BS.any(dim=0).nonzero().squeeze(1)
    logits_BCV = model(
        input_ids=token_ids_BT[:, :-1], use_cache=False, logits_to_keep=columns_C
    ).logits
    rows_N = sampled_BS[:, columns_C].flatten().nonzero().squeeze(1)
    logits_NV = logits_BCV.flatten(0, 1).index_select(0, rows_N)
    withheld_NW = None if withheld_BTW is None else withheld_BTW[mask_BT]
    return logprobs_of(logits_NV, token_ids_BT[:, 1:][sampled_BS], sampled_from, withheld_NW)


def logprobs_of(
    logits_NV: Tensor,
    token_ids_N: Tensor,
    sampled_from: SampledFrom,
    withheld_NW: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Of the distribution that was sampled from, in float32: the chosen tokens' values, entropies.

    Returns:
        `float32[N]` with gradient and `float32[N]` without, in nats.
    """
    withheld_NV = None if withheld_NW is None else _as_mask(withheld_NW, logits_NV.shape[1])
    scores_NV = sampled_from.scores(logits_NV, token_ids_N, withheld_NV)
    all_logprobs_NV = torch.log_softmax(scores_NV, dim=-1)
    chosen_N = all_logprobs_NV.gather(1, token_ids_N.unsqueeze(1)).squeeze(1)
    with torch.no_grad():
        chunks = torch.split(all_logprobs_NV.detach(), ENTROPY_ROWS)
        entropies_N = torch.cat([torch.special.entr(chunk.exp()).sum(-1) for chunk in chunks])
    return chosen_N, entropies_N


def _as_mask(ids_NW: Tensor, vocab_size: int) -> Tensor:
    """`bool[N, V]`, true at the ids; those outside the vocabulary name no token."""
    known_NW = torch.where((ids_NW >= 0) & (ids_NW < vocab_size), ids_NW, vocab_size)
    mask = torch.zeros(len(ids_NW), vocab_size + 1, dtype=torch.bool, device=ids_NW.device)
    return mask.scatter(1, known_NW, True)[:, :vocab_size]
