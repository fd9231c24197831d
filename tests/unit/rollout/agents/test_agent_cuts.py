"""With unchanged weights a rollout comes out the same, wherever it was cut."""

import asyncio
import itertools

import pytest

from consumers.rollout.agents.state import CutReason, RolloutFailed
from consumers.rollout.tools.calculator import calculator
from schemas.work import Rollout, RolloutStatus, RolloutTask, Snapshot
from tests.factories.agent_runs import (
    CALL,
    OPENING,
    cut_places,
    essence,
    make_loop,
    run_uncut,
    run_until_paused,
    run_with_cuts,
)
from tests.factories.rollouts import ScriptedEngine, make_task, talk

TURNS = ["add " + CALL.format("3+4") + "<|im_end|>", "it is 7.<|im_end|>"]
TASK = make_task(tools=("calculator",))


def script_of(renderer, turns=TURNS):
    return talk(renderer, turns, opening=OPENING)


async def uncut(renderer, task=TASK, turns=TURNS, **changes) -> Rollout:
    engine = ScriptedEngine(script_of(renderer, turns))
    return await run_uncut(make_loop(engine, renderer, **changes), task)


async def test_the_uncut_rollout_is_what_the_template_says(renderer):
    rollout = await uncut(renderer)
    text = renderer.decode(rollout.progress.tokens.token_ids.tolist(), skip_special=False)
    prompt = renderer.decode(renderer.prompt(TASK.messages, [calculator.spec]), skip_special=False)
    assert text == (
        prompt + TURNS[0] + "\n<|im_start|>user\n<tool_response>\n7\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n" + TURNS[1]
    )
    assert rollout.status is RolloutStatus.COMPLETED
    assert rollout.finish_reason == "stop"
    assert [(m.role, m.content) for m in rollout.progress.messages] == [
        ("user", "what is 3+4?"),
        ("assistant", "add"),
        ("tool", "7"),
        ("assistant", "it is 7."),
    ]
    (call,) = rollout.progress.messages[1].tool_calls
    assert (call.id, call.function.name) == ("3.1:0:0", "calculator")
    assert rollout.progress.messages[2].tool_call_id == "3.1:0:0"


async def test_cut_at_every_token(renderer):
    whole = await uncut(renderer)
    places = cut_places(whole)
    assert len(places) > 40
    for place in places:
        rollout = await run_with_cuts(TASK, script_of(renderer), renderer, [place])
        assert essence(rollout) == essence(whole), place


async def test_cut_at_every_token_with_chunks(renderer):
    whole = await uncut(renderer)
    for place in cut_places(whole)[::3]:
        rollout = await run_with_cuts(TASK, script_of(renderer), renderer, [place], chunk=5)
        assert essence(rollout) == essence(whole), place


async def test_cut_twice(renderer):
    whole = await uncut(renderer)
    places = cut_places(whole)
    for pair in itertools.combinations(places[::4], 2):
        rollout = await run_with_cuts(TASK, script_of(renderer), renderer, pair)
        assert essence(rollout) == essence(whole), pair


async def test_cut_at_every_token_of_one_rollout(renderer):
    whole = await uncut(renderer)
    places = cut_places(whole)
    rollout = await run_with_cuts(TASK, script_of(renderer), renderer, places, versions_rise=True)
    assert essence(rollout) | {"versions": 0} == essence(whole) | {"versions": 0}
    versions = rollout.progress.tokens.version_array
    sampled = versions[versions >= 0].tolist()
    assert sampled == sorted(sampled)
    assert len(set(sampled)) == len(sampled), "each token came from a version of its own"


async def test_versions_change_exactly_at_the_cut(renderer):
    whole = await uncut(renderer)
    for place in cut_places(whole)[::5]:
        rollout = await run_with_cuts(
            TASK, script_of(renderer), renderer, [place], versions_rise=True
        )
        tokens = rollout.progress.tokens
        expected = [
            -1 if not sampled else int(at >= place) for at, sampled in enumerate(tokens.mask_array)
        ]
        if place > rollout.progress.num_prompt_tokens:
            assert tokens.version_array.tolist() == expected
        else:
            assert set(tokens.version_array.tolist()) == {-1, 1}


async def test_history_is_never_tokenised_again(renderer):
    """The policy spells a text in single bytes that the tokenizer would merge."""
    merged = renderer._encode("the sum is seven")
    spelled = [token for byte in "the sum is seven" for token in renderer._encode(byte)]
    assert len(spelled) > len(merged)
    stop = min(renderer.eos_token_ids)
    call = renderer._encode(CALL.format("1+1"))
    turns = [[*spelled, *call, stop], [*spelled, stop]]
    whole = await uncut(renderer, turns=turns)
    sampled = whole.progress.tokens.token_ids[whole.progress.tokens.mask_array == 1].tolist()
    assert sampled == [*turns[0], *turns[1]]
    for place in cut_places(whole)[::7]:
        rollout = await run_with_cuts(TASK, script_of(renderer, turns), renderer, [place])
        assert essence(rollout) == essence(whole)


async def test_a_cut_before_the_first_token_gives_the_plain_task(renderer):
    place = (await uncut(renderer)).progress.num_prompt_tokens
    engine = ScriptedEngine(script_of(renderer), pause_at=[place])
    loop = make_loop(engine, renderer)
    state = loop.begin(TASK)
    assert await run_until_paused(loop, state, engine, CutReason.SYNC) == TASK


async def test_a_stop_token_at_the_cut_ends_the_turn_without_a_request(renderer):
    whole = await uncut(renderer)
    first, second = [t for t in whole.progress.turns if t.kind == "assistant"]
    engine = ScriptedEngine(script_of(renderer), pause_at=[first.stop])
    loop = make_loop(engine, renderer)
    snapshot = await run_until_paused(loop, loop.begin(TASK), engine, CutReason.SYNC)
    assert isinstance(snapshot, Snapshot)
    assert snapshot.phase == "processing_tools"
    assert [call.id for call in snapshot.pending_calls] == ["3.1:0:0"]
    engines: list[ScriptedEngine] = []
    rollout = await run_with_cuts(
        TASK, script_of(renderer), renderer, [first.stop, second.stop], engines=engines
    )
    assert essence(rollout) == essence(whole)
    assert [len(engine.requests) for engine in engines] == [1, 1]


async def test_what_interruptions_leave_behind(renderer):
    whole = await uncut(renderer)
    start = whole.progress.num_prompt_tokens
    rollout = await run_with_cuts(
        TASK, script_of(renderer), renderer, [start + 2, start + 5], reason=CutReason.INTERVAL
    )
    progress = rollout.progress
    assert [(i.at_token, i.worker, i.reason) for i in progress.interruptions] == [
        (start + 2, "rollout-0", "interval"),
        (start + 5, "rollout-1", "interval"),
    ]
    assert progress.num_reprefilled == start + 1 + start + 4, "all but the last sampled token"
    assert progress.num_resumed_elsewhere == 2


async def test_requests_of_one_turn_share_a_seed_and_others_do_not(renderer):
    whole = await uncut(renderer)
    start = whole.progress.num_prompt_tokens
    engines: list[ScriptedEngine] = []
    await run_with_cuts(TASK, script_of(renderer), renderer, [start + 3], engines=engines)
    first, rest, second = [r for engine in engines for r in engine.requests]
    assert first.seed == rest.seed != second.seed
    assert 0 <= first.seed < 2**63
    other = ScriptedEngine(script_of(renderer))
    await run_uncut(make_loop(other, renderer), make_task("3.2", tools=("calculator",)))
    assert other.requests[0].seed != first.seed


async def test_a_cut_is_idempotent_and_late_ones_do_nothing(renderer):
    whole = await uncut(renderer)
    engine = ScriptedEngine(script_of(renderer), pause_at=[whole.progress.num_prompt_tokens + 1])
    loop = make_loop(engine, renderer)
    state = loop.begin(TASK)
    assert not state.interruptible(CutReason.SYNC)
    assert state.interruptible(CutReason.LEAVE)
    snapshot = await run_until_paused(loop, state, engine, CutReason.SYNC)
    await loop.cut(state, CutReason.SYNC)
    await loop.cut(state, CutReason.LEAVE)
    assert isinstance(snapshot, Snapshot)
    assert len(snapshot.progress.interruptions) == 1


async def test_an_interrupt_without_a_cut_goes_on(renderer):
    whole = await uncut(renderer)
    place = whole.progress.num_prompt_tokens + 4
    engine = ScriptedEngine(script_of(renderer), pause_at=[place])
    loop = make_loop(engine, renderer)
    running = asyncio.ensure_future(loop.run(loop.begin(TASK)))
    await engine.paused.wait()
    engine.pause_at.clear()
    await engine.interrupt()
    assert essence(await running) == essence(whole)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"phase": "terminated"}, "nothing to continue"),
        ({"turn_start": 1}, "does not continue"),
        ({"phase": "interacting"}, "unfinished turn"),
    ],
)
async def test_a_snapshot_that_contradicts_itself_is_refused(renderer, changes, says):
    whole = await uncut(renderer)
    engine = ScriptedEngine(script_of(renderer), pause_at=[whole.progress.num_prompt_tokens + 4])
    loop = make_loop(engine, renderer)
    snapshot = await run_until_paused(loop, loop.begin(TASK), engine, CutReason.SYNC)
    broken = Snapshot.model_validate(snapshot.model_dump() | changes)
    with pytest.raises(RolloutFailed, match=says):
        loop.restore(broken)


def test_a_task_of_an_unknown_agent_fails(renderer):
    loop = make_loop(ScriptedEngine(script_of(renderer)), renderer)
    for agent in ("tol", "os:system", "no.such.module:x"):
        with pytest.raises(RolloutFailed):
            loop.begin(make_task(agent=agent))


async def test_cut_while_waiting_for_admission(renderer):
    never = asyncio.Event()
    engine = ScriptedEngine(script_of(renderer))
    loop = make_loop(engine, renderer, admit=never.wait)
    state = loop.begin(TASK)
    running = asyncio.ensure_future(loop.run(state))
    await asyncio.sleep(0.01)
    assert not state.interruptible(CutReason.SYNC), "it meets the new weights when admitted"
    await loop.cut(state, CutReason.LEAVE)
    result = await running
    assert isinstance(result, RolloutTask)
    assert engine.requests == []
