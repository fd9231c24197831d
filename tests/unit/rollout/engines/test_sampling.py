"""Sampling: noise from a hash, distributions cut as documented, draws that follow them."""

import math
import random

import pytest
import torch

from consumers.rollout.engines.base import GenerateRequest
from consumers.rollout.engines.transformers.noise import gumbel
from consumers.rollout.engines.transformers.sampling import Sampler, truncated

CPU = torch.device("cpu")
MASK = (1 << 64) - 1


def splitmix(state: int) -> int:
    """One output of SplitMix64 as published, in plain integers."""
    z = (state + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def test_the_oracle_is_splitmix64():
    """First outputs for seed 1234567, from the reference implementation."""
    state, seen = 1234567, []
    for _ in range(3):
        seen.append(splitmix(state))
        state = (state + 0x9E3779B97F4A7C15) & MASK
    assert seen == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@pytest.mark.parametrize("seed", [0, 1, -1, (1 << 63) + 12345, 1 << 70])
@pytest.mark.parametrize("position", [0, 7, 100_000])
def test_the_noise_is_the_hash_of_seed_position_and_token(seed, position):
    row = gumbel([seed], [position], 50, CPU)[0]
    key = splitmix((splitmix(seed & MASK) + position * 0x9E3779B97F4A7C15) & MASK)
    for token in (0, 1, 17, 49):
        bits = splitmix((key + token * 0x9E3779B97F4A7C15) & MASK)
        uniform = ((bits >> 12) + 0.5) * 2.0**-52
        assert row[token].item() == pytest.approx(-math.log(-math.log(uniform)), rel=1e-12)


def test_the_noise_of_a_row_does_not_know_the_others():
    together = gumbel([3, 4, 5], [9, 1, 9], 64, CPU)
    assert torch.equal(together[1], gumbel([4], [1], 64, CPU)[0])
    assert torch.equal(together[:, :10], gumbel([3, 4, 5], [9, 1, 9], 10, CPU))


def test_the_noise_is_gumbel_along_every_axis():
    """Mean 0.5772 and variance pi^2/6, over tokens, positions and seeds; no correlation."""
    over_tokens = gumbel([1], [1], 40_000, CPU)[0]
    over_positions = gumbel([1] * 40_000, range(40_000), 1, CPU)[:, 0]
    over_seeds = gumbel(range(40_000), [1] * 40_000, 1, CPU)[:, 0]
    for sample in (over_tokens, over_positions, over_seeds):
        assert sample.isfinite().all()
        assert sample.mean().item() == pytest.approx(0.5772, abs=0.03)
        assert sample.var().item() == pytest.approx(math.pi**2 / 6, rel=0.05)
        assert abs(torch.corrcoef(torch.stack([sample[:-1], sample[1:]]))[0, 1].item()) < 0.02


def asked(**values) -> GenerateRequest:
    return GenerateRequest(request_id="r", token_ids=(1,), max_tokens=100_000, **values)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"temperature": 0.5},
        {"top_k": 4},
        {"top_p": 0.7, "temperature": 1.3},
        {"min_p": 0.2},
        {"min_tokens": 90_000, "stop_token_ids": frozenset({0, 3, 99})},
    ],
)
def test_draws_follow_the_reported_distribution(values):
    """Chi-square of 20000 draws against the probabilities that the log-probabilities state."""
    torch.manual_seed(1)
    logits = torch.randn(12) * 1.5
    num_draws = 20_000
    sampler = Sampler([asked(seed=5, **values)] * num_draws, CPU)
    tokens, logprobs = sampler.sample(logits.expand(num_draws, -1), range(num_draws))
    stated = {}
    for token, logprob in zip(tokens, logprobs, strict=True):
        assert stated.setdefault(token, logprob) == logprob
    assert sum(math.exp(logprob) for logprob in stated.values()) == pytest.approx(1, abs=1e-3)
    statistic = sum(
        (tokens.count(token) - num_draws * math.exp(logprob)) ** 2 / (num_draws * math.exp(logprob))
        for token, logprob in stated.items()
    )
    degrees = len(stated) - 1
    assert statistic < degrees + 5 * math.sqrt(2 * degrees)


def by_hand(row: list[float], min_p: float, top_k: int, top_p: float) -> set[int]:
    """Tokens that stay, by sorting pairs."""
    order = sorted(range(len(row)), key=lambda token: -row[token])[: top_k or None]
    order = [token for token in order if math.exp(row[token] - max(row)) >= min_p]
    total = sum(math.exp(row[token]) for token in order)
    kept, mass = set(), 0.0
    for token in order:
        if kept and top_p < 1 and mass >= top_p:
            break
        kept.add(token)
        mass += math.exp(row[token]) / total
    return kept


def test_truncation_keeps_what_sorting_by_hand_keeps():
    generator = random.Random(3)
    rows = [[generator.gauss(0, 2) for _ in range(30)] for _ in range(60)]
    top_ks = [generator.choice([0, 1, 2, 5, 29, 30, 90]) for _ in rows]
    min_ps = [generator.choice([0.0, 0.0, 0.02, 0.3, 1.0]) for _ in rows]
    top_ps = [generator.choice([1.0, 1e-6, 0.3, 0.9, 0.999]) for _ in rows]
    cut = truncated(
        torch.tensor(rows),
        min_p=torch.tensor(min_ps),
        top_k=torch.tensor(top_ks),
        top_p=torch.tensor(top_ps),
    )
    for row, min_p, top_k, top_p, left in zip(rows, min_ps, top_ks, top_ps, cut, strict=True):
        assert set(left.isfinite().nonzero()[:, 0].tolist()) == by_hand(row, min_p, top_k, top_p)


def test_greedy_rows_and_sampled_rows_share_a_batch():
    logits = torch.tensor([[0.0, 2.0, 1.0], [0.0, 2.0, 1.0]])
    sampler = Sampler([asked(temperature=0.0, top_k=1), asked(seed=2, temperature=9.0)], CPU)
    seen = set()
    for position in range(50):
        tokens, logprobs = sampler.sample(logits, [position, position])
        assert tokens[0] == 1
        assert logprobs[0] == pytest.approx(2 - math.log(1 + math.e + math.e**2), abs=1e-6)
        seen.add(tokens[1])
    assert seen == {0, 1, 2}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_stop_tokens_are_not_there_until_min_tokens_are(temperature):
    """The request has one token and wants four before a stop: positions 1 to 4."""
    logits = torch.tensor([[0.0, 9.0, 1.0]])
    values = {"temperature": temperature, "min_tokens": 4, "stop_token_ids": frozenset({1})}
    sampler = Sampler([asked(seed=2, **values)], CPU)
    before = torch.tensor([0.0, 1.0]) / (temperature or 1.0)
    for position in (1, 2, 3, 4):
        (token,), (logprob,) = sampler.sample(logits, [position])
        assert token in (0, 2)
        assert logprob == pytest.approx(before.log_softmax(-1)[token // 2].item(), abs=1e-6)
    assert sampler.sample(logits, [5])[0] == [1]


def test_top_k_keeps_what_is_as_likely_as_the_last():
    """As vLLM and Hugging Face do; logits of half precision are often equal."""
    row = torch.tensor([[2.0, 1.0, 1.0, 0.0]])
    left = truncated(
        row, min_p=torch.tensor([0.0]), top_k=torch.tensor([2]), top_p=torch.tensor([1.0])
    )
    assert left.tolist() == [[2.0, 1.0, 1.0, -math.inf]]
