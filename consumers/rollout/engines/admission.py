"""Which requests an engine takes."""

import math
from collections.abc import Collection

from consumers.rollout.engines.base import GenerateRequest

GREEDY_BELOW = 1e-5
"""Temperatures below it are greedy."""


def check_request(
    request: GenerateRequest,
    *,
    vocab_size: int,
    max_model_len: int,
    options: Collection[str] = frozenset(),
) -> None:
    """Refuse what cannot be generated.

    Args:
        request: To be checked.
        vocab_size: Ids are below it.
        max_model_len: Context length in tokens, the sampled ones included.
        options: Names of the engine's own sampling parameters that it takes.

    Raises:
        ValueError: With the value that is wrong.
    """
    name = f"request {request.request_id}"
    if not request.token_ids:
        raise ValueError(f"{name} has no token to continue")
    low, high = min(request.token_ids), max(request.token_ids)
    if low < 0 or high >= vocab_size:
        wrong = low if low < 0 else high
        raise ValueError(f"{name} has token id {wrong}, the vocabulary ends at {vocab_size - 1}")
    if len(request.token_ids) >= max_model_len:
        raise ValueError(
            f"{name} has {len(request.token_ids)} tokens, no room in a context of {max_model_len}"
        )
    if request.max_tokens < 1:
        raise ValueError(f"{name} asks for {request.max_tokens} tokens")
    if not (math.isfinite(request.temperature) and request.temperature >= 0):
        raise ValueError(f"{name} has temperature {request.temperature}")
    if not 0 < request.top_p <= 1:
        raise ValueError(f"{name} has top_p {request.top_p}, must be in (0, 1]")
    if request.top_k < 0:
        raise ValueError(f"{name} has top_k {request.top_k}, 0 is off")
    if unknown := request.options.keys() - options:
        raise ValueError(f"{name} has sampling options {sorted(unknown)}")
    if not 0 <= request.min_p <= 1:
        raise ValueError(f"{name} has min_p {request.min_p}, must be in [0, 1]")
    if not 0 <= request.min_tokens <= request.max_tokens:
        raise ValueError(
            f"{name} has min_tokens {request.min_tokens}, must be in [0, {request.max_tokens}]"
        )


def last_length(request: GenerateRequest, *, max_model_len: int) -> int:
    """Tokens in the sequence when its budget, or the context, is used up."""
    return min(len(request.token_ids) + request.max_tokens, max_model_len)
