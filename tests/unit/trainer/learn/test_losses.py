import json
import math
from pathlib import Path

import pytest
import torch

from consumers.trainer.learn.losses import ppo_clip, token_mean
from infra.roles.registry import resolve

VECTORS = json.loads(Path("tests/data/loss_vectors.json").read_text())
INPUTS = VECTORS["inputs"]


def of_inputs(name):
    return torch.tensor(INPUTS[name], dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "old", "dual_clip"),
    [("dapo", "prox_logprob", math.inf), ("ppo_bypass_dual_clip", "behave_logprob", 3.0)],
)
def test_loss_and_gradient_equal_the_vectors(name, old, dual_clip):
    expected = VECTORS["losses"][name]
    new = of_inputs("new_logprob").requires_grad_()
    mask = of_inputs("mask").bool()
    advantages = torch.tensor(VECTORS["advantages"]["grpo"], dtype=torch.float64)[:, None]
    loss = token_mean(
        ppo_clip(
            new,
            of_inputs(old),
            advantages.expand_as(new),
            mask,
            expected["config"]["clip_low"],
            expected["config"]["clip_high"],
            dual_clip,
        ),
        int(mask.sum()),
    )
    loss.backward()
    assert loss.item() == pytest.approx(expected["loss"], abs=1e-9)
    torch.testing.assert_close(
        new.grad, torch.tensor(expected["grad"], dtype=torch.float64), atol=1e-6, rtol=0
    )


@pytest.mark.parametrize(
    ("column", "clip_high", "dual_clip"),
    [("ppo_02", 0.2, math.inf), ("dapo_02_028", 0.28, math.inf), ("dual_clip_c3", 0.2, 3.0)],
)
@pytest.mark.parametrize("case", VECTORS["single_token"])
def test_a_single_token_equals_the_table(case, column, clip_high, dual_clip):
    advantage, ratio = (float(part.split("=")[1]) for part in case.split(","))
    loss = ppo_clip(
        torch.tensor([math.log(ratio)], dtype=torch.float64),
        torch.zeros(1, dtype=torch.float64),
        torch.tensor([advantage], dtype=torch.float64),
        torch.ones(1, dtype=torch.bool),
        0.2,
        clip_high,
        dual_clip,
    )
    assert loss.item() == pytest.approx(VECTORS["single_token"][case][column], abs=1e-12)


@pytest.mark.parametrize("case", VECTORS["single_token"])
def test_the_gradient_of_a_single_token_equals_the_table(case):
    advantage, ratio = (float(part.split("=")[1]) for part in case.split(","))
    new = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([advantage], dtype=torch.float64)
    mask = torch.ones(1, dtype=torch.bool)
    ppo_clip(new, torch.zeros_like(new), advantages, mask, 0.2, 0.2, math.inf).sum().backward()
    expected = VECTORS["single_token"][case]["grad_ppo_02"]
    assert new.grad.item() == pytest.approx(expected, abs=1e-12)


def test_dual_clip_stops_the_gradient_of_a_runaway_token():
    new = torch.tensor([math.log(4.0)], requires_grad=True)
    loss = ppo_clip(new, torch.zeros(1), torch.tensor([-1.0]), torch.tensor([True]), 0.2, 0.28, 3.0)
    loss.sum().backward()
    assert (loss.item(), new.grad.item()) == (3.0, 0.0)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("drift", [-500.0, 500.0])
def test_an_absurd_drift_keeps_loss_and_gradient_finite(drift, advantage):
    new = torch.tensor([drift], requires_grad=True)
    loss = ppo_clip(
        new, torch.zeros(1), torch.tensor([advantage]), torch.tensor([True]), 0.2, 0.28, 3.0
    )
    loss.sum().backward()
    assert math.isfinite(loss.item())
    assert math.isfinite(new.grad.item())


def test_masked_tokens_weigh_nothing():
    new = torch.tensor([-1.0, -1.0], requires_grad=True)
    mask = torch.tensor([True, False])
    loss = ppo_clip(new, torch.full((2,), -1.1), torch.ones(2), mask, 0.2, 0.28, 3.0)
    loss.sum().backward()
    assert loss[1].item() == 0.0
    assert new.grad[1].item() == 0.0
    assert new.grad[0].item() != 0.0


def test_the_objective_is_registered():
    assert resolve("objective", "ppo_clip") is ppo_clip
