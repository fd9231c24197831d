import pytest

from consumers.trainer.batch.groups import Group, why_unusable
from tests.unit.trainer.batch.trajectories import trajectory

GOOD = trajectory(group=3, index=1, token_ids=[5, 6, 7], mask=[0, 1, 1], versions=[-1, 2, 4])


def test_a_sound_trajectory_is_usable():
    assert why_unusable(GOOD) is None
    assert why_unusable(GOOD, newest_version=4, vocab_size=8) is None


def test_a_version_above_the_newest_published_is_named():
    reason = why_unusable(GOOD, newest_version=3)
    assert "version 4" in reason
    assert "is 3" in reason


def test_a_token_outside_the_vocabulary_is_named():
    assert why_unusable(GOOD, vocab_size=7) == "token id 7 is outside the vocabulary of 7"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"mask": [0, 0, 0], "num_prompt_tokens": 1}, "sampled no token"),
        ({"mask": [1, 1, 1], "num_prompt_tokens": 0}, "prompt is empty"),
        ({"mask": [0, 1, 1], "num_prompt_tokens": 2}, "covers prompt tokens"),
        ({"mask": [0, 1, 1], "logprobs": [0.0, -1.0, 0.5]}, "above 0"),
    ],
)
def test_what_cannot_be_trained_on_says_why(changes, expected):
    assert expected in why_unusable(trajectory(token_ids=[5, 6, 7], **changes))


def test_a_logprob_rounded_just_above_0_is_usable():
    rounded = trajectory(token_ids=[5, 6], mask=[0, 1], logprobs=[0.0, 1e-6])
    assert why_unusable(rounded) is None


def test_an_id_that_disagrees_with_group_and_index_is_unusable():
    rollout = GOOD.rollout.model_copy(update={"rollout_id": "3.0"})
    assert "3.1" in why_unusable(GOOD.model_copy(update={"rollout": rollout}))


def test_a_group_is_ordered_by_index_whatever_arrived_first():
    members = [
        trajectory(group=3, index=index, token_ids=[5, 6], mask=[0, 1], reward=float(index))
        for index in (2, 0, 1)
    ]
    assert Group.of(3, members).rewards.tolist() == [0.0, 1.0, 2.0]


def test_a_group_refuses_strangers_and_doubles():
    with pytest.raises(ValueError, match=r"3\.1"):
        Group.of(2, [GOOD])
    with pytest.raises(ValueError, match="two members of one index"):
        Group.of(3, [GOOD, GOOD])
