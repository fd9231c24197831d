import json
import math
from pathlib import Path

import pytest
import torch

from consumers.trainer.learn.diagnostics import Diagnostics

VECTORS = json.loads(Path("tests/data/loss_vectors.json").read_text())


def sampled(name):
    mask = torch.tensor(VECTORS["inputs"]["mask"]).bool()
    return torch.tensor(VECTORS["inputs"][name], dtype=torch.float64)[mask]


def measure(new, old, *, splits=1, ages=None, dual_clip=3.0):
    mask = torch.tensor(VECTORS["inputs"]["mask"]).bool()
    advantages = torch.tensor(VECTORS["advantages"]["grpo"])[:, None].expand(mask.shape)[mask]
    ages = torch.full((len(new),), -1) if ages is None else torch.tensor(ages)
    diagnostics = Diagnostics(0.2, 0.28, dual_clip)
    entropies = torch.linspace(0, 1, len(new))
    for part in torch.arange(len(new)).tensor_split(splits):
        diagnostics.add(new[part], old[part], advantages[part], entropies[part], ages[part])
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
    ages = [position % 11 for position in range(len(new))]
    assert measure(new, old, splits=5, ages=ages) == pytest.approx(measure(new, old, ages=ages))


def test_mismatch_is_measured_on_tokens_of_the_current_version_alone():
    new, old = sampled("new_logprob"), sampled("behave_logprob")
    assert "train/mismatch_kl" not in measure(new, old)
    metrics = measure(new, old, ages=[0] * 4 + [1] * (len(new) - 4))
    assert metrics["train/mismatch_kl"] == pytest.approx((old - new)[:4].mean().item())


def test_dual_clipped_tokens_are_counted():
    new, old = sampled("new_logprob"), sampled("behave_logprob")
    # With bound 1.2 only the last member's second token (ratio 4/3) and the second member's
    # (ratio 1.4) have a negative advantage and a ratio above it.
    metrics = measure(new, old, dual_clip=1.2)
    assert metrics["train/clip_frac_dual"] == pytest.approx(2 / 18)


def test_tokens_kl_and_clipped_fractions_are_told_by_age():
    """Eight tokens; the policy made each 1, 2, 1/2, ... times as likely as when it was sampled."""
    ratios = torch.tensor([1.0, 1.0, 2.0, 0.5, 2.0, 2.0, 0.5, 4.0], dtype=torch.float64)
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, -1.0, 1.0, 1.0, -1.0])
    ages = torch.tensor([0, 0, 1, 3, 4, 5, 8, 9])
    diagnostics = Diagnostics(0.2, 0.28, 3.0)
    diagnostics.add(ratios.log(), torch.zeros(8).double(), advantages, torch.zeros(8), ages)
    metrics = diagnostics.metrics()
    found = {name: metrics[name] for name in metrics if name.startswith("age/")}
    log2 = math.log(2.0)
    k3_up, k3_down = 1.0 - log2, -0.5 + log2  # rho - 1 - log rho, of rho = 2 and of 1/2
    expected = {
        "0": (2, 0.0, 0.0, 0.0),
        "1": (1, -log2, k3_up, 1.0),  # above 1.28 with a positive advantage
        "3-4": (2, 0.0, (k3_down + k3_up) / 2, 0.5),  # below 0.8 with a negative one
        "5-8": (2, 0.0, (k3_up + k3_down) / 2, 0.5),
        "9+": (1, -2 * log2, 3.0 - 2 * log2, 1.0),  # beyond the dual clip
    }
    names = ("tokens", "kl", "kl_k3", "clip_frac")
    wanted = {
        f"age/{age}/{name}": value
        for age, values in expected.items()
        for name, value in zip(names, values, strict=True)
    }
    assert found == pytest.approx(wanted | {"age/2/tokens": 0})
    assert metrics["train/clip_frac"] == pytest.approx(4 / 8)
    assert metrics["train/mismatch_kl"] == 0.0


def test_tokens_of_unknown_age_count_in_the_whole_alone():
    metrics = measure(sampled("new_logprob"), sampled("behave_logprob"))
    assert {metrics[name] for name in metrics if name.startswith("age/")} == {0.0}
    assert metrics["train/kl"] != 0.0
