"""Log-probabilities of sampled tokens under the policy being trained."""

from typing import Any

import torch
from torch import Tensor

ENTROPY_ROWS = 1024
"""Rows whose entropy is computed at a time: bounds the extra memory at a large vocabulary."""


def sampled_logprobs(
    model: Any, token_ids_BT: Tensor, mask_BT: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """One forward pass over right-padded sequences.

    The language-model head is applied only to columns from which some sequence sampled.

    Args:
        model: A Hugging Face causal language model.
        token_ids_BT: `int64[B, T]`
        mask_BT: `bool[B, T]`, true where the policy sampled the token; false in column 0.
        temperature: That the tokens were sampled at.

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
    return logprobs_of(logits_NV, token_ids_BT[:, 1:][sampled_BS], temperature)


def logprobs_of(
    logits_NV: Tensor, token_ids_N: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Of `log_softmax(logits / temperature)`, in float32: the chosen tokens' values and entropies.

    Returns:
        `float32[N]` with gradient and `float32[N]` without, in nats.
    """
    all_logprobs_NV = torch.log_softmax(logits_NV.float() / temperature, dim=-1)
    chosen_N = all_logprobs_NV.gather(1, token_ids_N.unsqueeze(1)).squeeze(1)
    with torch.no_grad():
        chunks = torch.split(all_logprobs_NV.detach(), ENTROPY_ROWS)
        entropies_N = torch.cat([torch.special.entr(chunk.exp()).sum(-1) for chunk in chunks])
    return chosen_N, entropies_N
