"""From logits to tokens and their log-probabilities, each sequence with its own settings.

stop tokens out, before `min_tokens` -> divide by the temperature -> min-p -> top-k -> top-p -> draw

This is vLLM's order. Hugging Face's has min-p last: the same, except beside top-p, which then
counts the mass of what min-p leaves out.
"""

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
            (0.0, 0, 1.0) if is_greedy else (request.min_p, request.top_k, request.top_p)
            for request, is_greedy in zip(requests, greedy, strict=True)
        ]
        self._cuts = any(min_p or top_k or top_p < 1 for min_p, top_k, top_p in cuts)
        self._min_p, self._top_k, self._top_p = (
            torch.tensor(column, device=device) for column in zip(*cuts, strict=True)
        )
        self._unstoppable = [
            (row, len(request.token_ids) + request.min_tokens, sorted(request.stop_token_ids))
            for row, request in enumerate(requests)
            if request.min_tokens
        ]

    def sample(
        self, logits: torch.Tensor, positions: Sequence[int]
    ) -> tuple[list[int], list[float]]:
        """Draw one token per row.

        Args:
            logits: (rows, vocabulary), any float type.
            positions: Absolute index of the token that is drawn, per row.

        Returns:
            Token ids, and their log-probabilities (nats, float32 log-softmax) under the
            distribution that was drawn from: without stop tokens where they are not allowed yet,
            after temperature, min-p, top-k and top-p. Of a greedy row, under the model's own
            distribution (temperature 1, not truncated), likewise without stop tokens.
        """
        logits = self._without_stops(logits.float(), positions)
        if self._temperature is not None:
            logits = logits / self._temperature
        if self._cuts:
            logits = truncated(logits, min_p=self._min_p, top_k=self._top_k, top_p=self._top_p)
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

    def _without_stops(self, logits: torch.Tensor, positions: Sequence[int]) -> torch.Tensor:
        held = [(row, ids) for row, end, ids in self._unstoppable if positions[row] < end]
        if not held:
            return logits
        logits = logits.clone()
        for row, ids in held:
            logits[row, [token for token in ids if token < logits.shape[-1]]] = -torch.inf
        return logits


def truncated(
    logits: torch.Tensor, *, min_p: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor
) -> torch.Tensor:
    """Set to minus infinity what min-p, then top-k, then top-p of the rest leave out.

    Args:
        logits: (rows, vocabulary), float32, after temperature.
        min_p: (rows,), least probability that stays, as a share of the greatest; 0 is off
            (Nguyen et al., 2024, arXiv:2407.01082).
        top_k: (rows,), most likely tokens that stay; 0 is off. Those as likely as the last stay.
        top_p: (rows,), the smallest set of most likely tokens with at least this mass stays;
            1 is off (Holtzman et al., 2020, arXiv:1904.09751). The most likely token always stays.
    """
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    size = logits.shape[-1]
    dropped = ordered < ordered[:, :1] + min_p.log()[:, None]
    last = torch.where((top_k > 0) & (top_k < size), top_k, size) - 1
    dropped |= ordered < ordered.gather(-1, last[:, None])
    mass = ordered.masked_fill(dropped, -torch.inf).softmax(-1)
    before = mass.cumsum(-1) - mass
    dropped |= (before >= top_p[:, None]) & (top_p < 1)[:, None]
    dropped[:, 0] = False
    return logits.masked_fill(torch.zeros_like(dropped).scatter(-1, order, dropped), -torch.inf)
