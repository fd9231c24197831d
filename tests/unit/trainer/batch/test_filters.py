import json
from pathlib import Path

import pytest

from consumers.trainer.batch.filters import zero_variance

CASES = json.loads(Path("tests/data/loss_vectors.json").read_text())["dapo_dynamic_sampling"]


@pytest.mark.parametrize(
    ("rewards", "kept"), list(zip(CASES["groups"], CASES["keep_by_std"], strict=True))
)
def test_groups_without_variance_are_those_of_the_vectors(rewards, kept):
    assert zero_variance(rewards) is not kept


def test_equal_rewards_whose_deviation_rounds_above_0_have_no_variance():
    assert zero_variance([0.1] * 3)


def test_a_single_reward_has_no_variance():
    assert zero_variance([1.0])
