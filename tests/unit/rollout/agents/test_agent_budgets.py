"""Budgets are absolute: a cut never grants them again, and a turn's end beats them."""

import pytest

from consumers.rollout.agents.state import RolloutFailed
from consumers.rollout.tools.box import ToolBox
from consumers.rollout.tools.tool import tool
from tests.factories.agent_runs import (
    CALL,
    OPENING,
    cut_places,
    essence,
    make_loop,
    run_uncut,
    run_with_cuts,
)
from tests.factories.rollouts import ScriptedEngine, make_task, talk

CALLING = "add " + CALL.format("3+4") + "<|im_end|>"
TURNS = [CALLING, "it is 7.<|im_end|>"]


async def outcome(renderer, turns=TURNS, step=1, box=None, **budgets):
    """Uncut, and cut at every `step`th place; asserts that they agree."""
    task = make_task(tools=("calculator",), **budgets)
    script = talk(renderer, turns, opening=OPENING)
    changes = {} if box is None else {"tools": box}
    whole = await run_uncut(make_loop(ScriptedEngine(script), renderer, **changes), task)
    for place in cut_places(whole)[::step]:
        again = await run_with_cuts(task, script, renderer, [place], **changes)
        assert essence(again) == essence(whole), place
    places = cut_places(whole)[::step]
    again = await run_with_cuts(task, script, renderer, places, **changes)
    assert essence(again) == essence(whole)
    return whole


async def plain(renderer):
    """Uncut and without limits."""
    engine = ScriptedEngine(talk(renderer, TURNS, opening=OPENING))
    return await run_uncut(make_loop(engine, renderer), make_task(tools=("calculator",)))


def num_response(rollout):
    return len(rollout.progress.tokens) - rollout.progress.num_prompt_tokens


async def test_response_budget_counts_sampled_tokens(renderer):
    rollout = await outcome(renderer, max_response_tokens=9)
    assert num_response(rollout) == 9
    assert (rollout.status, rollout.finish_reason) == ("truncated", "length")
    assert rollout.progress.turns[-1].finish_reason == "length"


async def test_response_budget_counts_tool_tokens(renderer):
    whole = await plain(renderer)
    tool_turn = whole.progress.turns[2]
    assert tool_turn.kind == "tool"
    budget = tool_turn.stop - whole.progress.num_prompt_tokens + 3
    rollout = await outcome(renderer, step=2, max_response_tokens=budget)
    assert num_response(rollout) == budget
    assert rollout.progress.turns[-1].stop - rollout.progress.turns[-1].start == 3
    assert (rollout.status, rollout.finish_reason) == ("truncated", "length")


@pytest.mark.parametrize("room", [0, -1, -5])
async def test_a_result_that_leaves_no_room_is_not_appended(renderer, room):
    whole = await plain(renderer)
    tool_turn = whole.progress.turns[2]
    budget = tool_turn.stop - whole.progress.num_prompt_tokens + room
    rollout = await outcome(renderer, step=2, max_response_tokens=budget)
    assert (rollout.status, rollout.finish_reason) == ("truncated", "length")
    assert [turn.kind for turn in rollout.progress.turns] == ["prompt", "assistant"]
    assert [message.role for message in rollout.progress.messages] == ["user", "assistant"]
    assert [result.content for result in rollout.progress.tool_results] == ["7"]


async def test_a_stop_token_on_the_last_token_of_the_budget_completes(renderer):
    length = len(renderer._encode("yes<|im_end|>"))
    rollout = await outcome(renderer, ["yes<|im_end|>"], max_response_tokens=length)
    assert (rollout.status, rollout.finish_reason) == ("completed", "stop")
    rollout = await outcome(renderer, ["yes<|im_end|>"], max_response_tokens=length - 1)
    assert (rollout.status, rollout.finish_reason) == ("truncated", "length")


async def test_turn_budget_is_of_each_turn(renderer):
    first = len(renderer._encode(CALLING))
    long = ["a" * 5 + CALLING.removeprefix("add "), "x" * 300 + "<|im_end|>"]
    budget = max(first, len(renderer._encode(long[0])))
    rollout = await outcome(renderer, long, step=7, max_turn_tokens=budget)
    assert (rollout.status, rollout.finish_reason) == ("truncated", "max_turn_tokens")
    last = rollout.progress.turns[-1]
    assert last.stop - last.start == budget


async def test_calls_of_a_truncated_turn_are_shown_and_not_run(renderer):
    calls = []

    @tool
    def calculator(expression: str) -> str:
        """Count."""
        calls.append(expression)
        return ""

    turn = CALL.format("1+1") + " and so on for ever<|im_end|>"
    budget = len(renderer._encode(CALL.format("1+1"))) + 3
    rollout = await outcome(
        renderer, [turn], max_turn_tokens=budget, box=ToolBox({"calculator": calculator})
    )
    assert rollout.finish_reason == "max_turn_tokens"
    assert len(rollout.progress.messages[-1].tool_calls) == 1
    assert calls == []


async def test_max_turns(renderer):
    rollout = await outcome(renderer, [CALLING] * 5, step=5, max_turns=3)
    assert (rollout.status, rollout.finish_reason) == ("truncated", "max_turns")
    kinds = [turn.kind for turn in rollout.progress.turns]
    assert kinds == ["prompt", "assistant", "tool", "assistant", "tool", "assistant"]
    assert len(rollout.progress.tool_results) == 2, "the last call is not run"
    rollout = await outcome(renderer, [CALLING, CALLING, "7<|im_end|>"], step=5, max_turns=3)
    assert (rollout.status, rollout.finish_reason) == ("completed", "stop")


async def test_a_prompt_too_long_is_the_rollouts_failure(renderer):
    task = make_task(max_prompt_tokens=5)
    engine = ScriptedEngine(talk(renderer, TURNS, opening=OPENING))
    loop = make_loop(engine, renderer)
    with pytest.raises(RolloutFailed, match="max_prompt_tokens is 5") as failure:
        await loop.run(loop.begin(task))
    assert failure.value.kind == "data"
    assert engine.requests == []


async def test_requests_carry_the_room_that_is_left(renderer):
    task = make_task(tools=("calculator",), max_response_tokens=100, max_turn_tokens=60)
    script = talk(renderer, TURNS, opening=OPENING)
    whole = await run_uncut(make_loop(ScriptedEngine(script), renderer), task)
    start = whole.progress.num_prompt_tokens
    engines = []
    await run_with_cuts(task, script, renderer, [start + 7, start + 11], engines=engines)
    first, second, third, last = [r for engine in engines for r in engine.requests]
    assert [r.max_tokens for r in (first, second, third)] == [60, 53, 49]
    assert last.max_tokens == min(60, 100 - (len(last.token_ids) - start))
    assert first.stop_token_ids == renderer.eos_token_ids
