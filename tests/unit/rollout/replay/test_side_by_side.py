"""Two rollouts of one task, turn by turn."""

from functools import partial

import pytest

from consumers.rollout.replay.side_by_side import first_differing, logprob_gap, side_by_side
from consumers.rollout.replay.versions import ranges
from tests.factories.agent_runs import CALL, OPENING, make_loop, run_uncut
from tests.factories.replays import changed
from tests.factories.rollouts import ScriptedEngine, make_task, talk

ASKS = f"so {CALL.format('3+4')}<|im_end|>"


async def rollout(renderer, turns, version=0):
    engine = ScriptedEngine(talk(renderer, turns, opening=OPENING), chunk=3, version=version)
    return await run_uncut(make_loop(engine, renderer), make_task(tools=("calculator",)))


@pytest.fixture
def decode(renderer):
    return partial(renderer.decode, skip_special=False)


async def test_equal_turns_are_shown_once(renderer, decode):
    one = await rollout(renderer, [ASKS, "7<|im_end|>"])
    shown = side_by_side(one, one, decode)
    assert first_differing(one, one) is None
    assert "turn 3 · assistant · equal, 2 tokens\n  both      '7<|im_end|>'" in shown
    assert shown.endswith(
        "every token is the same\nlog-probabilities of the sampled tokens differ by at most 0\n"
    )


async def test_a_turn_is_parted_at_its_first_differing_token(renderer, decode):
    one = await rollout(renderer, [ASKS, "it is 7<|im_end|>"], version=3)
    other = await rollout(renderer, [ASKS, "it is\x1b[2J<|im_end|>"], version=8)
    shown = side_by_side(one, other, decode)
    assert shown.replace("\n", "").isprintable()
    assert "  both      'it is'\n  recorded >' 7<|im_end|>'  v3\n" in shown
    assert r"fresh    >'\\x1b[2J<|im_end|>'  v8" in shown or r">'\x1b[2J<|im_end|>'  v8" in shown
    at = one.progress.turns[3].start
    assert first_differing(one, other) > at
    assert f"first differing token: token {first_differing(one, other)} (turn 3, assist" in shown


async def test_one_that_ended_earlier_has_no_such_turn(renderer, decode):
    one = await rollout(renderer, [ASKS, "7<|im_end|>"])
    other = await rollout(renderer, ["seven<|im_end|>"])
    shown = side_by_side(one, other, decode)
    assert "fresh    >no such turn" in shown
    assert "recorded >no such turn" in side_by_side(other, one, decode)
    begun = changed(other, lambda raw: raw)
    assert logprob_gap(other, begun) == 0.0


async def test_a_log_probability_that_differs_is_measured(renderer):
    one = await rollout(renderer, ["seven<|im_end|>"])

    def change(raw):
        raw["progress"]["tokens"]["logprobs"][-1] -= 0.5

    assert logprob_gap(one, changed(one, change)) == pytest.approx(0.5)


def test_versions_are_named_in_ranges():
    assert ranges([]) == ""
    assert ranges([0, 4, 5, 6, 9]) == "0, 4 to 6, 9"
