import json
from pathlib import Path

import pytest
import torch

from consumers.trainer.learn.diagnostics import Diagnostics

VECTORS = json.loads(Path("tests/data/loss_vectors.json").read_text())


def sampled(name):
    mask = torch.tensor(VECTORS["inputs"]["mask"]).bool()
    return torch.tensor(VECTORS["inputs"][name], dtype=torch.float64)[mask]


def measure(new, old, *, splits=1, fresh=None, dual_clip=3.0):
    mask = torch.tensor(VECTORS["inputs"]["mask"]).bool()
    advantages = torch.tensor(VECTORS["advantages"]["grpo"])[:, None].expand(mask.shape)[mask]
    fresh = torch.zeros(len(new), dtype=torch.bool) if fresh is None else fresh
    diagnostics = Diagnostics(0.2, 0.28, dual_clip)
    entropies = torch.linspace(0, 1, len(new))
    for part in torch.arange(len(new)).tensor_split(splits):
        diagnostics.add(new[part], old[part], advantages[part], entropies[part], fresh[part])
    return diagnostics.metrics()


def test_ratio_and_clipped_fractions_equal_the_vectors():
    metrics = measure(sampled("new_logprob"), sampled("prox_logprob"))
    expected = VECTORS["metrics"]
    assert metrics["train/ratio_mean"] == pytest.approx(expected["ratio_new_prox"]["mean"])
    assert metrics["train/ratio_max"] == pytest.approx(expected["ratio_new_prox"]["max"])
    low, high = expected["clip_frac_dapo"]["low"], expected["clip_frac_dapo"]["high"]
    assert metrics["train/clip_frac_low"] == pytest.approx(low)
    assert metrics["train/clip_frac_high"] == pytest.approx(high)
    assert metrics["train/clip_frac"] == pytest.approx(low + high)
    assert metrics["train/entropy"] == pytest.approx(0.5)


def test_effective_sample_size_equals_the_vectors():
    metrics = measure(sampled("new_logprob"), sampled("behave_logprob"))
    expected = VECTORS["metrics"]
    assert metrics["train/ess"] == pytest.approx(expected["ess_token"])
    assert metrics["train/ratio_max"] == pytest.approx(expected["is_weight_new_behave"]["max"])


def test_kl_to_the_rollout_policy_equals_the_vectors():
    metrics = measure(sampled("prox_logprob"), sampled("behave_logprob"))
    assert metrics["train/kl"] == pytest.approx(VECTORS["metrics"]["mismatch_kl_k1"])
    assert metrics["train/kl_k3"] == pytest.approx(VECTORS["metrics"]["mismatch_kl_k3"])


def test_metrics_do_not_depend_on_the_split():
    new, old = sampled("new_logprob"), sampled("behave_logprob")
    fresh = torch.arange(len(new)) % 3 == 0
    assert measure(new, old, splits=5, fresh=fresh) == pytest.approx(measure(new, old, fresh=fresh))


def test_mismatch_is_measured_on_tokens_of_the_current_version_alone():
    new, old = sampled("new_logprob"), sampled("behave_logprob")
    assert "train/mismatch_kl" not in measure(new, old)
    fresh = torch.zeros(len(new), dtype=torch.bool)
    fresh[:4] = True
    metrics = measure(new, old, fresh=fresh)
    assert metrics["train/mismatch_kl"] == pytest.approx((old - new)[:4].mean().item())


def test_dual_clipped_tokens_are_counted():
    new, old = sampled("new_logprob"), sampled("behave_logprob")
    # With bound 1.2 only the last member's second token (ratio 4/3) and the second member's
    # (ratio 1.4) have a negative advantage and a ratio above it.
    metrics = measure(new, old, dual_clip=1.2)
    assert metrics["train/clip_frac_dual"] == pytest.approx(2 / 18)
