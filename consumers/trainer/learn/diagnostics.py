"""How far the policy has moved from the one that sampled: sums over tokens, then metrics.

Sums of micro-batches add up, so the metrics do not depend on how a batch was split. They are kept
by the tokens' age: how many versions the one that sampled a token is behind the current one.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from consumers.trainer.learn.losses import log_ratio

AGES = ("0", "1", "2", "3-4", "5-8", "9+")
"""Names of the buckets of age, in versions."""
UNKNOWN_AGE = -1
_BOUNDS = (UNKNOWN_AGE, 0, 1, 2, 4, 8)
"""Largest age of each bucket but the last; the first is of tokens whose age is not known."""

_SUMMED = (
    "tokens",
    "entropy",
    "k1",
    "k3",
    "ratio",
    "ratio_squared",
    "clipped_low",
    "clipped_high",
    "dual_clipped",
)
_NUM_BUCKETS = 1 + len(AGES)
_CLIPPED = ("clipped_low", "clipped_high", "dual_clipped")


@dataclass(slots=True)
class Diagnostics:
    """Accumulates over the micro-batches of one step."""

    clip_low: float
    clip_high: float
    dual_clip: float
    _sums: Tensor = field(default_factory=lambda: torch.zeros(len(_SUMMED), _NUM_BUCKETS).double())
    """`[len(_SUMMED), unknown and AGES]`, in host memory."""
    _ratio_max: float = 0.0

    @torch.no_grad()
    def add(
        self,
        new_logprobs_N: Tensor,
        rollout_logprobs_N: Tensor,
        advantages_N: Tensor,
        entropies_N: Tensor,
        ages_N: Tensor,
    ) -> None:
        """Count `N` sampled tokens.

        Args:
            ages_N: `[N]`, the current version minus the one that sampled the token; below 0 where
                that is not known.
        """
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
            ]
        )
        buckets_N = torch.bucketize(ages_N, torch.tensor(_BOUNDS, device=ages_N.device))
        self._sums += (values @ one_hot(buckets_N, _NUM_BUCKETS).double()).cpu()
        self._ratio_max = max(self._ratio_max, float(ratio.max()))

    def metrics(self) -> dict[str, float]:
        """Names under `train/` and, for each bucket of age, `age/<bucket>/`.

        `kl` and `kl_k3` estimate KL(rollout policy || policy) by `k1 = mean(rollout - new)` and
        `k3 = mean(rho - 1 - log rho)`; `mismatch_kl` and `mismatch_kl_k3` are the same over tokens
        of the current version alone, where only engine and trainer can differ (absent without such
        tokens). `ess` is `(sum rho)^2 / (n sum rho^2)`, the effective sample size over tokens.

        By age: `tokens`, how many; `kl`, `kl_k3` and `clip_frac` as above over these alone, absent
        where there are none.
        """
        sums = self._named(self._sums.sum(dim=1))
        count = sums["tokens"]
        metrics = {
            "train/entropy": sums["entropy"] / count,
            "train/kl": sums["k1"] / count,
            "train/kl_k3": sums["k3"] / count,
            "train/ratio_mean": sums["ratio"] / count,
            "train/ratio_max": self._ratio_max,
            "train/ess": sums["ratio"] ** 2 / (count * sums["ratio_squared"]),
            "train/clip_frac": sum(sums[name] for name in _CLIPPED) / count,
            "train/clip_frac_low": sums["clipped_low"] / count,
            "train/clip_frac_high": sums["clipped_high"] / count,
            "train/clip_frac_dual": sums["dual_clipped"] / count,
        }
        for column, age in enumerate(AGES, 1):
            metrics |= self._of_age(age, self._named(self._sums[:, column]))
        if "age/0/kl" in metrics:
            metrics["train/mismatch_kl"] = metrics["age/0/kl"]
            metrics["train/mismatch_kl_k3"] = metrics["age/0/kl_k3"]
        return metrics

    def _of_age(self, age: str, sums: dict[str, float]) -> dict[str, float]:
        count = sums["tokens"]
        if not count:
            return {f"age/{age}/tokens": 0.0}
        return {
            f"age/{age}/tokens": count,
            f"age/{age}/kl": sums["k1"] / count,
            f"age/{age}/kl_k3": sums["k3"] / count,
            f"age/{age}/clip_frac": sum(sums[name] for name in _CLIPPED) / count,
        }

    @staticmethod
    def _named(column: Tensor) -> dict[str, float]:
        return dict(zip(_SUMMED, column.tolist(), strict=True))
