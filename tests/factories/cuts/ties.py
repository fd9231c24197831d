"""Whether rounding could decide a token of a conversation, by a plain forward pass.

Float32 leaves some 1e-6 nats to chance (the order of sums depends on the batch, and engines differ
by up to 5e-5): where two tokens are as near as that, which is taken says nothing about cuts.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from consumers.rollout.agents.seeds import request_seed
from consumers.rollout.engines.transformers.noise import gumbel
from consumers.rollout.engines.transformers.sampling import truncated
from schemas.work import Rollout, RolloutTask, TurnKind

Noise = Callable[[Sequence[int], Sequence[int], int, torch.device], torch.Tensor]
"""Seeds, positions, vocabulary size and device to Gumbel noise, (sequences, vocabulary)."""

_WINNER_NATS = 2e-4
_RANK_NATS = 2e-5
_MASS = 5e-6


def rounding_decides(
    model: Any,
    task: RolloutTask,
    rollout: Rollout,
    *,
    noise: Noise = gumbel,
    of_ranks: bool = False,
) -> bool:
    """Whether the best two tokens are near each other anywhere, or two at the edge of what top-k
    and top-p leave.

    Args:
        model: Hugging Face's, on CPU.
        task: Its sampling.
        rollout: Uncut.
        noise: Of the engine, if it was sampled.
        of_ranks: The noise of column n is that of the n-th likeliest token; else of token n.
    """
    token_ids = torch.tensor(rollout.progress.tokens.token_ids.tolist())
    with torch.inference_mode():
        logits = model(token_ids[None], use_cache=False).logits[0].float()
    for turn in rollout.progress.turns:
        if turn.kind is not TurnKind.ASSISTANT:
            continue
        scores = logits[turn.start - 1 : turn.stop - 1]
        if task.sampling.temperature > 0:
            scores, on_edge = _distribution(scores, task)
            seed = request_seed(task.sampling.seed, task.rollout_id, turn.start)
            positions = range(turn.start, turn.stop)
            drawn = noise([seed] * len(scores), positions, scores.shape[1], scores.device)
            if of_ranks:
                scores = scores.sort(descending=True).values
                on_edge |= _between_ranks(scores, (scores + drawn).argmax(-1))
            scores += drawn
            if on_edge:
                return True
        best = scores.topk(2).values
        if float((best[:, 0] - best[:, 1]).min()) < _WINNER_NATS:
            return True
    return False


def _between_ranks(ordered: torch.Tensor, winners: torch.Tensor) -> bool:
    """Whether a winner could change places with a neighbour, who would then win."""
    rows, last = torch.arange(len(winners)), ordered.shape[1] - 1
    won = ordered[rows, winners]
    above = ordered[rows, (winners - 1).clamp(min=0)] - won
    below = won - ordered[rows, (winners + 1).clamp(max=last)]
    above[winners == 0] = below[winners == last] = torch.inf
    return float(torch.minimum(above, below).min()) < _RANK_NATS


def _distribution(logits: torch.Tensor, task: RolloutTask) -> tuple[torch.Tensor, bool]:
    """Log-probabilities that are sampled from, float64, and whether a token is on an edge."""
    sampling = task.sampling
    scaled = logits / sampling.temperature
    ordered = scaled.sort(descending=True).values
    on_edge = False
    if k := sampling.top_k:
        on_edge = float((ordered[:, k - 1] - ordered[:, k]).min()) < _RANK_NATS
        ordered = ordered[:, :k]
    if sampling.top_p < 1:
        mass = ordered.softmax(-1).cumsum(-1)
        on_edge |= float((mass - sampling.top_p).abs().min()) < _MASS
    min_p = torch.tensor([sampling.min_p] * len(logits))
    top_k = torch.tensor([sampling.top_k] * len(logits))
    top_p = torch.tensor([sampling.top_p] * len(logits))
    kept = truncated(scaled, min_p=min_p, top_k=top_k, top_p=top_p)
    return kept.log_softmax(-1).double(), on_edge
