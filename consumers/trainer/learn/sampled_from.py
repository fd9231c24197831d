"""The distribution that tokens were sampled from, of the policy being trained.

The ratio of the objective is between the same kind of distribution before and after: the engine's
stored log-probability is of its truncated one, so the trainer truncates as well, in the engine's
order:

    stop tokens out, before `min_tokens` -> divide by the temperature -> min-p -> top-k -> top-p
    -> renormalise over what is left and the sampled token

With the weights that sampled it, the sampled token is among what is left, and the log-probability
is the stored one. With other weights it may have fallen out; it is kept all the same, for a ratio
of 0 would give it no gradient to come back by, and its logarithm is not finite. So the ratio is
exact where what is left is the same for both policies, and otherwise off by the mass of the tokens
that differ. (Keeping the engine's own set instead, as the report of DeepSeek-V3.2 describes,
arXiv:2512.02556, would need it stored for each token.)
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from schemas.config import RolloutSection

_ROWS = 1024
"""Sorted at a time: bounds the extra memory at a large vocabulary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledFrom:
    """Sampling settings of training rollouts; the same for every token."""

    temperature: float = 1.0
    """Positive."""
    min_p: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    @classmethod
    def of(cls, rollout: RolloutSection) -> Self:
        """What the recipe says."""
        return cls(
            temperature=rollout.temperature,
            min_p=rollout.min_p,
            top_k=rollout.top_k,
            top_p=rollout.top_p,
        )

    @property
    def truncates(self) -> bool:
        """Whether any token is left out."""
        return self.min_p > 0 or self.top_k > 0 or self.top_p < 1

    def scores(
        self, logits_NV: Tensor, token_ids_N: Tensor, withheld_NV: Tensor | None = None
    ) -> Tensor:
        """Logits whose softmax is the distribution that was sampled from.

        Args:
            logits_NV: Of the model, any float type.
            token_ids_N: `int64[N]`, the sampled tokens.
            withheld_NV: `bool[N, V]`, true where a token was not to be sampled; None for nowhere.

        Returns:
            `float32[N, V]`, minus infinity at tokens that could not be sampled, with gradient
            elsewhere.
        """
        scores_NV = logits_NV.float() / self.temperature
        if withheld_NV is not None:
            scores_NV = scores_NV.masked_fill(_spared(withheld_NV, token_ids_N), -torch.inf)
        if not self.truncates:
            return scores_NV
        with torch.no_grad():
            parts = torch.split(scores_NV.detach(), _ROWS)
            dropped_NV = torch.cat([self._dropped(part) for part in parts])
        return scores_NV.masked_fill(_spared(dropped_NV, token_ids_N), -torch.inf)

    def _dropped(self, scores_NV: Tensor) -> Tensor:
        """`bool[N, V]`: tokens that min-p, then top-k, then top-p of the rest leave out."""
        ordered_NV, order_NV = scores_NV.sort(dim=-1, descending=True, stable=True)
        dropped_NV = torch.zeros_like(ordered_NV, dtype=torch.bool)
        if self.min_p > 0:
            least_N1 = ordered_NV[:, :1] + torch.tensor(self.min_p).log().item()
            dropped_NV |= ordered_NV < least_N1
        if 0 < self.top_k < ordered_NV.shape[1]:
            dropped_NV |= ordered_NV < ordered_NV[:, self.top_k - 1 : self.top_k]
        if self.top_p < 1:
            mass_NV = ordered_NV.masked_fill(dropped_NV, -torch.inf).softmax(-1)
            dropped_NV |= mass_NV.cumsum(-1) - mass_NV >= self.top_p
            dropped_NV[:, 0] = False
        return torch.zeros_like(dropped_NV).scatter(-1, order_NV, dropped_NV)


def _spared(mask_NV: Tensor, token_ids_N: Tensor) -> Tensor:
    return mask_NV.scatter(1, token_ids_N.unsqueeze(1), False)
