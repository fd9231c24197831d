"""From logits to tokens and their log-probabilities, each sequence with its own settings."""

from collections.abc import Sequence

import torch

from consumers.rollout.engines.admission import GREEDY_BELOW
from consumers.rollout.engines.base import GenerateRequest
from consumers.rollout.engines.transformers.noise import gumbel


class Sampler:
    """Settings of a batch as columns; built anew when its composition changes.

    Args:
        requests: One per row.
        device: Of the logits.
    """

    def __init__(self, requests: Sequence[GenerateRequest], device: torch.device) -> None:
        self._device = device
        self._seeds = [request.seed for request in requests]
        greedy = [request.temperature < GREEDY_BELOW for request in requests]
        temperatures = [
            1.0 if is_greedy else request.temperature
            for request, is_greedy in zip(requests, greedy, strict=True)
        ]
        self._all_greedy = all(greedy)
        self._greedy = torch.tensor(greedy, device=device) if any(greedy) else None
        self._temperature = (
            torch.tensor(temperatures, device=device)[:, None]
            if any(value != 1.0 for value in temperatures)
            else None
        )
        cuts = [
            (0, 1.0) if is_greedy else (request.top_k, request.top_p)
            for request, is_greedy in zip(requests, greedy, strict=True)
        ]
        self._cuts = any(top_k or top_p < 1 for top_k, top_p in cuts)
        self._top_k = torch.tensor([top_k for top_k, _ in cuts], device=device)
        self._top_p = torch.tensor([top_p for _, top_p in cuts], device=device)

    def sample(
        self, logits: torch.Tensor, positions: Sequence[int]
    ) -> tuple[list[int], list[float]]:
        """Draw one token per row.

        Args:
            logits: (rows, vocabulary), any float type.
            positions: Absolute index of the token that is drawn, per row.

        Returns:
            Token ids, and their log-probabilities (nats, float32 log-softmax) under the
            distribution that was drawn from: after temperature, top-k and top-p. Of a greedy row,
            under the model's own distribution (temperature 1, not truncated).
        """
        logits = logits.float()
        if self._temperature is not None:
            logits = logits / self._temperature
        if self._cuts:
            logits = truncated(logits, self._top_k, self._top_p)
        logprobs = logits.log_softmax(-1)
        if self._all_greedy:
            tokens = logprobs.argmax(-1)
        else:
            noise = gumbel(self._seeds, positions, logprobs.shape[-1], self._device)
            tokens = noise.add_(logprobs).argmax(-1)
            if self._greedy is not None:
                tokens = torch.where(self._greedy, logprobs.argmax(-1), tokens)
        chosen = logprobs.gather(-1, tokens[:, None])[:, 0]
        return tokens.tolist(), chosen.tolist()


def truncated(logits: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Set to minus infinity what top-k, then top-p of the rest, leave out.

    Args:
        logits: (rows, vocabulary), float32, after temperature.
        top_k: (rows,), most likely tokens that stay; 0 is off.
        top_p: (rows,), the smallest set of most likely tokens with at least this mass stays;
            1 is off. The most likely token always stays.
    """
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    size = logits.shape[-1]
    limit = torch.where(top_k > 0, top_k, size)[:, None]
    dropped = torch.arange(size, device=logits.device)[None] >= limit
    ordered = ordered.masked_fill(dropped, -torch.inf)
    mass = ordered.softmax(-1)
    before = mass.cumsum(-1) - mass
    dropped |= (before >= top_p[:, None]) & (top_p < 1)[:, None]
    dropped[:, 0] = False
    return logits.masked_fill(torch.zeros_like(dropped).scatter(-1, order, dropped), -torch.inf)
