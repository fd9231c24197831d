from typing import Any

from consumers.trainer.arriving.tally import Tally
from schemas.headers import Purpose
from schemas.work import Interruption
from tests.unit.trainer.batch.trajectories import trajectory

TOKENS: dict[str, Any] = {"token_ids": [1, 5, 6, 7], "mask": [0, 1, 1, 1]}


def test_what_arrived_since_the_last_step_counts_filtered_groups_too() -> None:
    tally = Tally()
    assert tally.since_last() == {"arrived/trajectories": 0.0, "arrived/interruptions": 0}
    for reward in (1.0, 1.0, 0.0, 1.0):
        tally.add(trajectory(reward=reward, **TOKENS))
    at = Interruption(at_token=3, version=0, worker="rollout-1", reason="sync")
    tally.add(trajectory(reward=1.0, interruptions=(at, at), **TOKENS))
    assert tally.since_last() == {
        "arrived/trajectories": 5.0,
        "arrived/interruptions": 2,
        "arrived/reward": 0.8,
    }
    assert "arrived/reward" not in tally.since_last()
    assert tally.to_json()["total/trajectories"] == 5


def test_held_out_rollouts_are_counted_apart() -> None:
    tally = Tally()
    scored = trajectory(reward=1.0, **TOKENS)
    rollout = scored.rollout.model_copy(update={"purpose": Purpose.EVAL})
    tally.add(scored.model_copy(update={"rollout": rollout}))
    assert tally.since_last()["arrived/trajectories"] == 0
    assert tally.to_json()["total/eval/trajectories"] == 1
