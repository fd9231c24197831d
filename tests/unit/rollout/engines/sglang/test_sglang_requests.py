"""What is sent for a turn."""

import pytest

from consumers.rollout.engines.base import GenerateRequest
from consumers.rollout.engines.sglang.facts import Facts
from consumers.rollout.engines.sglang.requests import Leg, next_leg, request_body


def facts(**changes) -> Facts:
    values = {
        "version": "0.5.23",
        "device": "cpu",
        "tensor_parallel": 1,
        "deterministic": False,
        "mask_limit": 4096,
    }
    return Facts(**(values | changes))


def asked(**changes) -> GenerateRequest:
    return GenerateRequest(**({"request_id": "r", "token_ids": (5, 6), "max_tokens": 10} | changes))


def sampling(request: GenerateRequest, *, vocab_size: int = 1000, **changes):
    leg = next_leg(request, 0, max_model_len=100)
    body = request_body(
        request, leg, request.token_ids, rid="x", facts=facts(**changes), vocab_size=vocab_size
    )
    return body["sampling_params"], body


def test_everything_is_said():
    sent, body = sampling(asked())
    assert sent == {
        "max_new_tokens": 10,
        "temperature": 1.0,
        "top_k": -1,
        "top_p": 1.0,
        "min_p": 0.0,
        "stop_token_ids": [],
        "ignore_eos": True,
    }
    assert body["input_ids"] == [5, 6]
    assert body["stream"] is body["return_logprob"] is True
    assert body["return_sampling_mask"] is False


def test_stop_tokens_are_heeded_only_with_the_end_token():
    sent, _ = sampling(asked(stop_token_ids=frozenset({9, 2})))
    assert (sent["stop_token_ids"], sent["ignore_eos"]) == ([2, 9], False)


@pytest.mark.parametrize(
    ("settings", "top_k"),
    [({"top_k": 5}, 5), ({"top_p": 0.9}, 1000), ({"min_p": 0.1}, 1000)],
)
def test_truncated_distributions_have_a_top_k(settings, top_k):
    sent, body = sampling(asked(**settings))
    assert sent["top_k"] == top_k
    assert body["return_sampling_mask"] is True


def test_a_top_k_below_the_servers_limit():
    assert sampling(asked(top_p=0.9), vocab_size=150_000)[0]["top_k"] == 4032
    assert sampling(asked(top_k=5000), vocab_size=150_000)[0]["top_k"] == 4032


def test_with_seeds_every_sampled_request_has_a_top_k():
    """Its neighbours in a batch would otherwise decide which noise it gets."""
    sent, body = sampling(asked(seed=3), deterministic=True)
    assert (sent["top_k"], sent["sampling_seed"]) == (1000, 3)
    assert body["return_sampling_mask"] is False


def test_greedy_is_of_the_whole_distribution():
    sent, body = sampling(asked(temperature=0.0, top_k=7, seed=3), deterministic=True)
    assert (sent["temperature"], sent["top_k"]) == (0.0, -1)
    assert "sampling_seed" not in sent
    assert body["return_sampling_mask"] is False


@pytest.mark.parametrize(("seed", "sent"), [(3, 3), ((1 << 64) - 1, -1), (1 << 63, -(1 << 63))])
def test_seeds_have_a_sign(seed, sent):
    assert sampling(asked(seed=seed), deterministic=True)[0]["sampling_seed"] == sent
    assert "sampling_seed" not in sampling(asked(seed=seed))[0]


def test_a_minimum_is_a_leg_of_its_own():
    request = asked(min_tokens=4, stop_token_ids=frozenset({9}))
    legs = [next_leg(request, done, max_model_len=100) for done in (0, 3, 4, 10)]
    assert legs == [
        Leg(max_tokens=4, stops_barred=True),
        Leg(max_tokens=1, stops_barred=True),
        Leg(max_tokens=6),
        None,
    ]
    sent, _ = sampling(request)
    assert sent["logit_bias"] == {"9": -1e9}
    assert sent["ignore_eos"] is True


def test_without_stops_there_is_nothing_to_hold_back():
    assert next_leg(asked(min_tokens=4), 0, max_model_len=100) == Leg(max_tokens=10)


def test_the_context_bounds_the_budget():
    assert next_leg(asked(max_tokens=500), 0, max_model_len=100) == Leg(max_tokens=98)
    assert next_leg(asked(max_tokens=500), 98, max_model_len=100) is None
