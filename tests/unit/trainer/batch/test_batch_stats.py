import json
from pathlib import Path

import pytest

from consumers.trainer.batch.groups import Group
from consumers.trainer.batch.stats import batch_stats
from schemas.chat import FunctionCall, ToolCall
from schemas.work import Interruption, RolloutStatus, ToolResult, Turn, TurnKind
from tests.unit.trainer.batch.trajectories import trajectory

VECTORS = json.loads(Path("tests/data/loss_vectors.json").read_text())


def cut(at_token, worker="rollout-1"):
    return Interruption(at_token=at_token, version=0, worker=worker, reason="sync")


def result(ok):
    call = ToolCall(id="0.0:0:0", function=FunctionCall(name="calculator", arguments="{}"))
    return ToolResult(call=call, content="", ok=ok)


def test_staleness_equals_the_vectors():
    rows = list(zip(VECTORS["inputs"]["behave_version"], VECTORS["inputs"]["mask"], strict=True))
    members = [
        trajectory(
            index=index,
            token_ids=[5] * 6,
            mask=[0, *mask],
            versions=[-1, *versions],
            num_prompt_tokens=1,
        )
        for index, (versions, mask) in enumerate(rows)
    ]
    expected = VECTORS["metrics"]["staleness"]
    stats = batch_stats([Group.of(0, members)], VECTORS["inputs"]["v_prox"])
    assert stats["staleness/mean"] == pytest.approx(expected["mean"])
    assert stats["staleness/max"] == expected["max"]
    assert stats["staleness/trajectory_mean"] == pytest.approx(
        sum(expected["per_sequence_max"]) / 6
    )
    assert stats["staleness/versions_mean"] == pytest.approx(sum(expected["versions_spanned"]) / 6)
    assert stats["staleness/versions_max"] == max(expected["versions_spanned"])


def test_rewards_lengths_and_truncation():
    members = [
        trajectory(index=0, token_ids=[5] * 4, mask=[0, 1, 1, 1], reward=1.0, rewards={"a": 1.0}),
        trajectory(
            index=1,
            token_ids=[5] * 6,
            mask=[0, 0, 1, 0, 0, 1],
            reward=0.0,
            rewards={"a": 0.5, "b": 3.0},
            status=RolloutStatus.TRUNCATED,
        ),
    ]
    stats = batch_stats([Group.of(0, members)], 0)
    expected = {
        "reward/mean": 0.5,
        "reward/std": 0.5,
        "reward/min": 0.0,
        "reward/max": 1.0,
        "rewards/a": 0.75,
        "rewards/b": 3.0,
        "batch/num_trajectories": 2.0,
        "batch/num_tokens": 10.0,
        "batch/num_sampled": 5.0,
        "length/prompt_mean": 1.5,
        "length/response_mean": 3.5,
        "length/response_max": 4.0,
        "batch/truncated_frac": 0.5,
    }
    assert {name: stats[name] for name in expected} == expected


def test_interruptions_count_each_carried_token_once():
    twice_cut = trajectory(
        index=0,
        token_ids=[5] * 8,
        mask=[0, 1, 1, 0, 1, 1, 1, 1],
        interruptions=(cut(3), cut(6, "rollout-2")),
        num_reprefilled=9,
        num_resumed_elsewhere=2,
    )
    once_cut = trajectory(
        index=1, token_ids=[5] * 3, mask=[0, 1, 1], interruptions=(cut(2),), num_reprefilled=2
    )
    never_cut = trajectory(index=2, token_ids=[5] * 3, mask=[0, 1, 1])
    stats = batch_stats([Group.of(0, [twice_cut, once_cut, never_cut])], 0)
    expected = {
        "batch/interruptions": 3.0,
        "batch/resumed": 2.0,
        "batch/resumed_elsewhere": 1.0,
        "batch/tokens_carried": 5.0,
        "batch/tokens_reprefilled": 11.0,
    }
    assert {name: stats[name] for name in expected} == expected


def test_what_was_found_in_a_prefix_cache_is_a_share_of_all_that_was_asked_for():
    rows = {"token_ids": [5] * 3, "mask": [0, 1, 1]}
    found = trajectory(index=0, **rows, num_prefilled=10, num_cached=26)
    computed = trajectory(index=1, **rows, num_prefilled=4)
    group = Group.of(0, [found, computed])
    stats = batch_stats([group], 0)
    assert stats["batch/tokens_prefilled"] == 14.0
    assert stats["batch/tokens_cached"] == 26.0
    assert stats["batch/prefix_hit_rate"] == 0.65
    unknown = [trajectory(index=index, **rows) for index in range(2)]
    assert batch_stats([Group.of(0, unknown)], 0)["batch/prefix_hit_rate"] == 0.0


def test_turns_and_tools():
    turns = (
        Turn(kind=TurnKind.PROMPT, start=0, stop=1),
        Turn(kind=TurnKind.ASSISTANT, start=1, stop=2),
        Turn(kind=TurnKind.TOOL, start=2, stop=3),
        Turn(kind=TurnKind.ASSISTANT, start=3, stop=4),
    )
    members = [
        trajectory(
            index=0,
            token_ids=[5] * 4,
            mask=[0, 1, 0, 1],
            turns=turns,
            tool_results=(result(True), result(False)),
        ),
        trajectory(index=1, token_ids=[5] * 2, mask=[0, 1]),
    ]
    stats = batch_stats([Group.of(0, members)], 0)
    assert stats["batch/turns_mean"] == 1.0
    assert stats["tools/calls"] == 2.0
    assert stats["tools/errors"] == 1.0
    assert stats["tools/used_frac"] == 0.5
