"""How far the policy has moved from the one that sampled: sums over tokens, then metrics.

Sums of micro-batches add up, so the metrics do not depend on how a batch was split.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from consumers.trainer.learn.losses import log_ratio

SUMMED = (
    "tokens",
    "entropy",
    "k1",
    "k3",
    "ratio",
    "ratio_squared",
    "clipped_low",
    "clipped_high",
    "dual_clipped",
    "fresh_tokens",
    "fresh_k1",
    "fresh_k3",
)


@dataclass(slots=True)
class Diagnostics:
    """Accumulates over the micro-batches of one step."""

    clip_low: float
    clip_high: float
    dual_clip: float
    _sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SUMMED, 0.0))
    _ratio_max: float = 0.0

    @torch.no_grad()
    def add(
        self,
        new_logprobs_N: Tensor,
        rollout_logprobs_N: Tensor,
        advantages_N: Tensor,
        entropies_N: Tensor,
        fresh_N: Tensor,
    ) -> None:
        """Count `N` sampled tokens; `fresh_N` is true where the current version sampled them."""
        change = log_ratio(new_logprobs_N, rollout_logprobs_N).double()
        ratio = change.exp()
        k3 = torch.expm1(change) - change
        positive, negative = advantages_N > 0, advantages_N < 0
        values = torch.stack(
            [
                torch.ones_like(ratio),
                entropies_N.double(),
                -change,
                k3,
                ratio,
                ratio.square(),
                negative & (ratio < 1.0 - self.clip_low),
                positive & (ratio > 1.0 + self.clip_high),
                negative & (ratio > self.dual_clip),
                fresh_N,
                -change * fresh_N,
                k3 * fresh_N,
            ]
        )
        for name, total in zip(SUMMED, values.sum(dim=1).tolist(), strict=True):
            self._sums[name] += total
        self._ratio_max = max(self._ratio_max, float(ratio.max()))

    def metrics(self) -> dict[str, float]:
        """Names under `train/`.

        `kl` and `kl_k3` estimate KL(rollout policy || policy) by `k1 = mean(rollout - new)` and
        `k3 = mean(rho - 1 - log rho)`; `mismatch_kl` and `mismatch_kl_k3` are the same over tokens
        of the current version alone, where only engine and trainer can differ (absent without such
        tokens). `ess` is `(sum rho)^2 / (n sum rho^2)`, the effective sample size over tokens.
        """
        sums = self._sums
        count = sums["tokens"]
        clipped = sums["clipped_low"] + sums["clipped_high"] + sums["dual_clipped"]
        metrics = {
            "train/entropy": sums["entropy"] / count,
            "train/kl": sums["k1"] / count,
            "train/kl_k3": sums["k3"] / count,
            "train/ratio_mean": sums["ratio"] / count,
            "train/ratio_max": self._ratio_max,
            "train/ess": sums["ratio"] ** 2 / (count * sums["ratio_squared"]),
            "train/clip_frac": clipped / count,
            "train/clip_frac_low": sums["clipped_low"] / count,
            "train/clip_frac_high": sums["clipped_high"] / count,
            "train/clip_frac_dual": sums["dual_clipped"] / count,
        }
        if sums["fresh_tokens"]:
            metrics["train/mismatch_kl"] = sums["fresh_k1"] / sums["fresh_tokens"]
            metrics["train/mismatch_kl_k3"] = sums["fresh_k3"] / sums["fresh_tokens"]
        return metrics
