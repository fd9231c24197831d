import json
import math
from pathlib import Path

import pytest
import torch

from consumers.trainer.batch.packing import pack
from consumers.trainer.learn.logprobs import logprobs_of, sampled_logprobs
from consumers.trainer.learn.sampled_from import SampledFrom
from tests.unit.trainer.batch.trajectories import random_trajectories

CASES = json.loads(Path("tests/data/loss_vectors.json").read_text())["logits_to_logprob"]


@pytest.mark.parametrize("temperature", CASES["by_temperature"])
def test_logprobs_entropies_and_gradient_equal_the_vectors(temperature):
    expected = CASES["by_temperature"][temperature]
    logits = torch.tensor(CASES["logits"], requires_grad=True)
    logprobs, entropies = logprobs_of(
        logits, torch.tensor(CASES["token"]), SampledFrom(temperature=float(temperature))
    )
    logprobs.sum().backward()
    assert logprobs.tolist() == pytest.approx(expected["logprob"], abs=1e-6)
    assert entropies.tolist() == pytest.approx(expected["entropy"], abs=1e-6)
    torch.testing.assert_close(
        logits.grad, torch.tensor(expected["dlogp_dlogits"]), atol=1e-6, rtol=0
    )


def test_half_precision_logits_are_widened_before_the_softmax():
    logits = torch.tensor([[8.0, 1.0, -3.0]], dtype=torch.bfloat16)
    logprobs, _ = logprobs_of(logits, torch.tensor([1]), SampledFrom())
    by_hand = 1.0 - math.log(math.exp(8) + math.exp(1) + math.exp(-3))
    assert logprobs.dtype == torch.float32
    assert logprobs.item() == pytest.approx(by_hand, abs=1e-6)


def test_a_forbidden_token_does_not_spoil_the_entropy():
    _, entropies = logprobs_of(
        torch.tensor([[0.0, 0.0, -math.inf]]), torch.tensor([0]), SampledFrom()
    )
    assert entropies.item() == pytest.approx(math.log(2), abs=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_a_padded_batch_equals_one_sequence_at_a_time_in_float64(policy, temperature):
    trajectories = random_trajectories(9, seed=3, vocab_size=policy.vocab_size)
    (batch,) = pack(trajectories, [0.0] * 9, 10_000)
    token_ids, mask = torch.from_numpy(batch.token_ids), torch.from_numpy(batch.mask)
    with torch.no_grad():
        logprobs, entropies = sampled_logprobs(
            policy.model, token_ids, mask, SampledFrom(temperature=temperature)
        )
        oracle = policy.model.double()
        by_id = {t.rollout.rollout_id: t.rollout.progress.tokens for t in trajectories}
        expected, expected_entropies = [], []
        for rollout_id in batch.rollout_ids:
            tokens = by_id[rollout_id]
            ids = torch.from_numpy(tokens.token_ids.astype("int64"))
            logits = oracle(input_ids=ids[None]).logits[0] / temperature
            distribution = torch.distributions.Categorical(logits=logits)
            for position in tokens.mask_array.nonzero()[0].tolist():
                expected.append(distribution.logits[position - 1, ids[position]].item())
                expected_entropies.append(distribution.entropy()[position - 1].item())
    assert logprobs.tolist() == pytest.approx(expected, abs=2e-5)
    assert entropies.tolist() == pytest.approx(expected_entropies, abs=2e-5)
