"""What requests cost in prompt tokens: computed, found in a cache, computed again."""

import pytest

from consumers.rollout.agents.state import CutReason
from schemas.work import Progress, Rollout, Snapshot
from tests.factories.agent_runs import CALL, OPENING, make_loop, run_uncut, run_until_paused
from tests.factories.rollouts import ScriptedEngine, make_task, talk

TURNS = ["add " + CALL.format("3+4") + "<|im_end|>", "it is 7.<|im_end|>"]
TASK = make_task(tools=("calculator",))


@pytest.fixture
def script(renderer):
    return talk(renderer, TURNS, opening=OPENING)


def counts(progress: Progress) -> tuple[int, int, int]:
    return progress.num_prefilled, progress.num_cached, progress.num_reprefilled


async def test_without_a_cache_every_turn_computes_all_before_it(script, renderer):
    rollout = await run_uncut(make_loop(ScriptedEngine(script), renderer), TASK)
    first, second = [turn for turn in rollout.progress.turns if turn.kind == "assistant"]
    assert counts(rollout.progress) == (first.start + second.start, 0, 0)


async def test_what_was_cached_is_not_computed(script, renderer):
    engine = ScriptedEngine(script, num_cached=30)
    rollout = await run_uncut(make_loop(engine, renderer), TASK)
    first, second = [turn for turn in rollout.progress.turns if turn.kind == "assistant"]
    assert counts(rollout.progress) == (first.start + second.start - 60, 60, 0)


async def resumed(script, renderer, snapshot: Snapshot, num_cached: int) -> Rollout:
    engine = ScriptedEngine(script, num_cached=num_cached)
    loop = make_loop(engine, renderer, worker="rollout-1")
    rollout = await loop.run(loop.restore(snapshot))
    assert isinstance(rollout, Rollout)
    return rollout


@pytest.mark.parametrize(("num_cached", "again"), [(0, "all"), (40, "rest"), (10_000, "none")])
async def test_a_cut_costs_what_the_next_worker_has_not_cached(script, renderer, num_cached, again):
    whole = await run_uncut(make_loop(ScriptedEngine(script), renderer), TASK)
    start = whole.progress.num_prompt_tokens
    engine = ScriptedEngine(script, pause_at=[start + 3])
    loop = make_loop(engine, renderer)
    snapshot = await run_until_paused(loop, loop.begin(TASK), engine, CutReason.SYNC)
    assert isinstance(snapshot, Snapshot)
    assert counts(snapshot.progress) == (start, 0, 0)
    rollout = await resumed(script, renderer, snapshot, num_cached)
    computed_before = start + 2
    expected = {"all": computed_before, "rest": computed_before - 40, "none": 0}
    assert rollout.progress.num_reprefilled == expected[again]
    assert rollout.progress.num_prefilled >= start + expected[again]


async def test_a_request_that_was_cut_before_its_first_token_counts_nothing(script, renderer):
    whole = await run_uncut(make_loop(ScriptedEngine(script), renderer), TASK)
    second = [turn for turn in whole.progress.turns if turn.kind == "assistant"][1]
    engine = ScriptedEngine(script, pause_at=[second.start])
    loop = make_loop(engine, renderer)
    snapshot = await run_until_paused(loop, loop.begin(TASK), engine, CutReason.SYNC)
    assert isinstance(snapshot, Snapshot)
    start = whole.progress.num_prompt_tokens
    assert counts(snapshot.progress) == (start, 0, 0)
    rollout = await resumed(script, renderer, snapshot, 0)
    last_sampled = whole.progress.turns[1].stop - 1
    assert counts(rollout.progress) == (start + second.start, 0, last_sampled)
