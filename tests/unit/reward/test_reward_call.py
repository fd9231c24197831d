"""Signatures and answers."""

import asyncio
from decimal import Decimal

import numpy as np
import orjson
import pytest
import torch

from consumers.reward.call import BadScore, Scorer, read_answer
from consumers.reward.functions.exact_match import exact_match
from consumers.reward.functions.math_number import final_number, math_number
from consumers.reward.view import RolloutView
from infra.roles.errors import ConfigError
from tests.unit.reward import reward_samples
from tests.unit.reward.reward_rollouts import rollout


def score(function, ground_truth="42"):
    view = RolloutView(orjson.loads(rollout(ground_truth).model_dump_json()))
    loop = asyncio.new_event_loop()
    try:
        return Scorer.of("it", function)(view, loop)
    finally:
        loop.close()


@pytest.mark.parametrize(
    ("function", "value"),
    [
        (reward_samples.verl_style, 1.0),
        (reward_samples.short_verl_style, float(len("I ask.\n42\nso 42"))),
        (reward_samples.by_keywords, 0.5),
        (reward_samples.whole, 16.0),
        (reward_samples.waits, 0.25),
        (reward_samples.judge, 4.0),
        (lambda rollout, scale=2: scale, 2.0),
    ],
)
def test_signatures(function, value):
    assert score(function).value == value


def test_numbers_beside_the_score_are_kept():
    assert score(reward_samples.by_keywords).extras == {"offered": 4.0, "ok": 1.0}


@pytest.mark.parametrize(
    "function", [reward_samples.two_arguments, reward_samples.not_a_function, lambda: 0.0]
)
def test_what_cannot_be_called_is_refused_with_both_signatures(function):
    with pytest.raises(ConfigError, match=r"compute_score\(data_source"):
        Scorer.of("it", function)


@pytest.mark.parametrize("answer", [1, True, 1.0, np.float32(1), np.array(1.0), torch.tensor(1.0)])
def test_numbers_of_every_kind(answer):
    assert read_answer(answer).value == 1.0
    assert read_answer({"score": answer}).value == 1.0


@pytest.mark.parametrize(
    "answer",
    [
        None,
        "1.0",
        float("nan"),
        float("-inf"),
        np.float64("nan"),
        {"acc": 1},
        {"score": None},
        [1.0],
        np.ones(2),
        10**400,
        1j,
    ],
)
def test_what_is_no_score(answer):
    with pytest.raises(BadScore):
        read_answer(answer)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so she has 72 clips", "72"),
        ("3 + 4 = 7", "7"),
        ("#### 72", "72"),
        ("12 #### 1,234.50 and 9", "1234.5"),
        ("it costs $5.", "5"),
        ("-3", "-3"),
        ("0.50", "0.5"),
        ("none", None),
        ("7 ####", None),
    ],
)
def test_final_number(text, number):
    assert final_number(text) == (None if number is None else Decimal(number))


def test_math_number_compares_values():
    assert math_number("", "So 48+24 = 72.0", "Natalia sold #### 72") == 1.0
    assert math_number("", "71", "72") == 0.0
    assert math_number("", "no idea", 72) == 0.0
    with pytest.raises(ValueError, match="holds no number"):
        math_number("", "72", None)


def test_exact_match_looks_at_the_last_turn():
    assert score(exact_match, " so 42\n").value == 1.0
    assert score(exact_match, "42").value == 0.0
    with pytest.raises(ValueError, match="ground truth"):
        score(exact_match, None)
