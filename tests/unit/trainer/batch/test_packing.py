import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.trainer.batch.packing import pack
from tests.unit.trainer.batch.trajectories import random_trajectories, trajectory


def test_one_micro_batch_holds_every_array_right_padded():
    short = trajectory(index=0, token_ids=[5, 6], mask=[0, 1], logprobs=[0, -0.5])
    long = trajectory(
        index=1,
        token_ids=[7, 8, 9, 10],
        mask=[0, 1, 0, 1],
        logprobs=[0, -1, 0, -2],
        versions=[-1, 3, -1, 4],
    )
    (packed,) = pack([short, long], [0.25, -0.75], 8)
    assert packed.rollout_ids == ("0.1", "0.0")
    assert packed.token_ids.tolist() == [[7, 8, 9, 10], [5, 6, 0, 0]]
    assert packed.mask.tolist() == [[False, True, False, True], [False, True, False, False]]
    assert packed.rollout_logprobs.tolist() == [[0, -1, 0, -2], [0, -0.5, 0, 0]]
    assert packed.versions.tolist() == [[-1, 3, -1, 4], [-1, 0, -1, -1]]
    assert packed.advantages.tolist() == [-0.75, 0.25]
    assert (packed.num_tokens, packed.num_sampled) == (6, 3)


@given(count=st.integers(1, 24), seed=st.integers(0, 50), bound=st.integers(1, 400))
def test_micro_batches_hold_everything_once_within_the_bound(count, seed, bound):
    trajectories = random_trajectories(count, seed=seed, vocab_size=50)
    advantages = [float(i) for i in range(count)]
    micro_batches = pack(trajectories, advantages, bound)
    for one in micro_batches:
        assert one.token_ids.size <= bound or len(one.rollout_ids) == 1
    by_id = {
        rollout_id: (one, row)
        for one in micro_batches
        for row, rollout_id in enumerate(one.rollout_ids)
    }
    assert sum(len(one.rollout_ids) for one in micro_batches) == len(by_id) == count
    for position, source in enumerate(trajectories):
        one, row = by_id[source.rollout.rollout_id]
        tokens = source.rollout.progress.tokens
        assert one.advantages[row] == advantages[position]
        assert np.array_equal(one.token_ids[row, : len(tokens)], tokens.token_ids)
        assert np.array_equal(one.rollout_logprobs[row, : len(tokens)], tokens.logprobs)
        assert one.mask[row].sum() == tokens.num_sampled
    total = sum(t.rollout.progress.tokens.num_sampled for t in trajectories)
    assert sum(one.num_sampled for one in micro_batches) == total


def test_packing_repeats_itself():
    trajectories = random_trajectories(16, seed=1, vocab_size=50)
    first, second = (pack(trajectories, [1.0] * 16, 64) for _ in range(2))
    assert [one.rollout_ids for one in first] == [one.rollout_ids for one in second]
    for one, other in zip(first, second, strict=True):
        assert np.array_equal(one.token_ids, other.token_ids)


def test_advantages_of_another_length_are_refused():
    with pytest.raises(ValueError, match="2 trajectories, 1 advantages"):
        pack(random_trajectories(2, seed=0, vocab_size=50), [1.0], 64)
