import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.trainer.batch.advantages import advantages_of, dr_grpo, grpo, rloo
from consumers.trainer.batch.groups import Group
from infra.roles.errors import ConfigError
from infra.roles.registry import resolve
from tests.unit.trainer.batch.trajectories import trajectory

VECTORS = json.loads(Path("tests/data/loss_vectors.json").read_text())


def groups():
    numbers, rewards = VECTORS["inputs"]["group"], VECTORS["inputs"]["reward"]
    members = [
        trajectory(group=number, index=position, token_ids=[5, 6], mask=[0, 1], reward=reward)
        for position, (number, reward) in enumerate(zip(numbers, rewards, strict=True))
    ]
    return [
        Group.of(number, [m for m in members if m.rollout.group == number])
        for number in sorted(set(numbers))
    ]


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo"])
def test_advantages_equal_the_vectors(name):
    assert advantages_of(groups(), name) == pytest.approx(VECTORS["advantages"][name], abs=1e-12)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [(grpo, 0.7 / 1.000001), (dr_grpo, 0.7), (rloo, 0.7)],
)
def test_a_group_of_one_counts_with_mean_0_and_deviation_1(estimator, expected):
    assert estimator(np.array([0.7])) == pytest.approx([expected], abs=1e-15)


@given(st.lists(st.integers(-8, 8).map(float), min_size=2, max_size=12))
def test_rloo_compares_with_the_mean_of_the_others(rewards):
    by_hand = [
        reward - sum(rewards[:i] + rewards[i + 1 :]) / (len(rewards) - 1)
        for i, reward in enumerate(rewards)
    ]
    assert rloo(np.array(rewards)) == pytest.approx(by_hand, abs=1e-12)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=12))
def test_advantages_of_a_group_sum_to_zero(rewards):
    for estimator in (grpo, dr_grpo, rloo):
        advantages = estimator(np.array(rewards))
        assert np.isfinite(advantages).all()
        assert abs(advantages.sum()) <= 1e-8 * max(1.0, float(np.abs(advantages).sum()))


@pytest.mark.parametrize("estimator", [grpo, dr_grpo, rloo])
def test_equal_rewards_give_exactly_0_although_their_mean_rounds(estimator):
    assert estimator(np.array([0.1] * 3)).tolist() == [0.0, 0.0, 0.0]


def test_estimators_are_registered_and_an_unknown_name_is_a_configuration_error():
    assert resolve("advantages", "grpo") is grpo
    with pytest.raises(ConfigError, match="dr_grpo"):
        advantages_of(groups(), "dr_grp")
