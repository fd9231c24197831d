"""What ends a turn is a function of its tokens: not of chunks, cuts or what came after."""

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from consumers.rollout.agents.stops import TurnStops
from consumers.rollout.engines.base import EngineFailed
from schemas.work import Sampling
from tests.factories.agent_runs import (
    OPENING,
    cut_places,
    essence,
    make_loop,
    run_uncut,
    run_with_cuts,
)
from tests.factories.rollouts import ScriptedEngine, make_task, talk

EOS = 2


def stopping(*strings, **changes):
    return make_task(agent="single_turn", sampling=Sampling(seed=7, stop=strings), **changes)


async def said(renderer, text, task, *, chunk=1):
    engine = ScriptedEngine(talk(renderer, [text], opening=OPENING), chunk=chunk)
    rollout = await run_uncut(make_loop(engine, renderer), task)
    return rollout.progress.messages[-1].content, rollout


@pytest.mark.parametrize("chunk", [1, 2, 5, 50])
async def test_the_token_that_completes_a_string_ends_the_turn_and_is_its_last(renderer, chunk):
    text, rollout = await said(
        renderer, "the sum is 7\n\nuser: and now<|im_end|>", stopping("\n\nuser"), chunk=chunk
    )
    assert text == "the sum is 7\n\nuser"
    assert (rollout.status, rollout.finish_reason) == ("completed", "stop")
    assert rollout.progress.turns[-1].finish_reason == "stop"
    tokens = rollout.progress.tokens
    assert len(tokens.logprobs) == len(tokens.token_ids) == rollout.progress.turns[-1].stop


async def test_the_engine_is_let_go_when_the_string_is_there(renderer):
    engine = ScriptedEngine(talk(renderer, ["a;" + "b" * 90], opening=OPENING), chunk=3)
    rollout = await run_uncut(make_loop(engine, renderer), stopping(";"))
    assert rollout.progress.messages[-1].content == "a;"
    assert not engine._running
    assert len(engine.requests) == 1


async def test_a_string_in_the_prompt_or_in_an_earlier_turn_ends_nothing(renderer):
    task = stopping("3+4", "<|im_start|>")
    text, _ = await said(renderer, "7 is 3 +4<|im_end|>", task)
    assert text == "7 is 3 +4"


@pytest.mark.parametrize(
    ("min_tokens", "expected"), [(0, "a;"), (1, "a;"), (2, "a;b;"), (3, "a;b;")]
)
async def test_a_string_that_is_complete_before_min_tokens_ends_nothing(
    renderer, min_tokens, expected
):
    """Tokens are single bytes here: the second completes the first string, the fourth another."""
    task = stopping(";", min_tokens=min_tokens)
    for chunk in (1, 3, 9):
        text, _ = await said(renderer, "a;b;c<|im_end|>", task, chunk=chunk)
        assert text == expected


async def test_a_string_begun_before_min_tokens_and_completed_after_them_ends_the_turn(renderer):
    text, _ = await said(renderer, "xyz<|im_end|>", stopping("xyz", min_tokens=2))
    assert text == "xyz"


async def test_an_engine_that_ends_a_turn_too_early_is_not_believed(renderer):
    with pytest.raises(EngineFailed, match="min_tokens is 9"):
        await said(renderer, "ab<|im_end|>", stopping(min_tokens=9))


async def test_a_string_beats_the_budget_that_ends_with_it(renderer):
    _, rollout = await said(renderer, "ab;c<|im_end|>", stopping(";", max_turn_tokens=3))
    assert rollout.finish_reason == "stop"


def test_a_string_of_several_bytes_is_found_at_its_last_byte(renderer):
    """Its character is decoded only once all four bytes are there."""
    stops = TurnStops(
        token_ids=frozenset({EOS}),
        strings=("🙂",),
        decode=lambda ids: renderer.decode(ids, skip_special=False),
    )
    ids = renderer._encode("a🙂🙂b")
    first = next(
        n for n in range(len(ids) + 1) if "🙂" in renderer.decode(ids[:n], skip_special=False)
    )
    assert stops.end(ids, start=0, begin=0) == first
    assert stops.end(ids[: first - 1], start=0, begin=0) is None
    assert stops.end(ids, start=0, begin=first) == next(
        n for n in range(len(ids)) if renderer.decode(ids[:n], skip_special=False).count("🙂") == 2
    )


def naive(stops, renderer, ids):
    """The shortest prefix whose last token is a stop token or brings the end of a stop string."""
    for end in range(stops.min_tokens + 1, len(ids) + 1):
        text = renderer.decode(ids[:end], skip_special=False)
        before = renderer.decode(ids[: end - 1], skip_special=False).rstrip("\ufffd")
        ends = [
            at + len(string)
            for string in stops.strings
            for at in range(len(text))
            if text.startswith(string, at)
        ]
        if ids[end - 1] in stops.token_ids or any(found > len(before) for found in ends):
            return end
    return None


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    ids=st.lists(st.integers(2, 300), max_size=40) | st.text("ab;\n é🙂", max_size=30),
    strings=st.lists(st.text("ab;\n é🙂", min_size=1, max_size=4), max_size=3),
    min_tokens=st.integers(0, 12),
    data=st.data(),
)
def test_windows_find_what_reading_the_whole_turn_finds(renderer, ids, strings, min_tokens, data):
    ids = renderer._encode(ids) if isinstance(ids, str) else ids
    stops = TurnStops(
        token_ids=frozenset({EOS}),
        strings=tuple(strings),
        min_tokens=min_tokens,
        decode=lambda tokens: renderer.decode(tokens, skip_special=False),
    )
    expected = naive(stops, renderer, ids)
    before = data.draw(st.lists(st.integers(2, 300), max_size=5))
    sequence = [*before, *ids]
    known, found = len(before), None
    while found is None and known < len(sequence):
        upto = data.draw(st.integers(known + 1, len(sequence)))
        found = stops.end(sequence[:upto], start=len(before), begin=known)
        known = upto
    assert found == (None if expected is None else expected + len(before))


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_cuts_leave_no_trace_of_themselves_in_where_a_turn_ends(renderer, data):
    text = data.draw(st.text("ab;\n é🙂", max_size=25)) + "<|im_end|>"
    strings = tuple(data.draw(st.lists(st.text("ab;\n é🙂", min_size=1, max_size=3), max_size=3)))
    num_tokens = len(renderer._encode(text))
    min_tokens = data.draw(st.integers(0, num_tokens - 1))
    chunk = data.draw(st.integers(1, 9))
    script = talk(renderer, [text], opening=OPENING)
    task = stopping(*strings, min_tokens=min_tokens)

    async def compare():
        whole = await run_uncut(make_loop(ScriptedEngine(script), renderer), task)
        cuts = sorted(data.draw(st.sets(st.sampled_from(cut_places(whole)), max_size=4)))
        cut = await run_with_cuts(task, script, renderer, cuts, chunk=chunk)
        assert essence(cut) == essence(whole)
        turn = whole.progress.turns[-1]
        assert turn.stop - turn.start > min_tokens

    asyncio.run(compare())
