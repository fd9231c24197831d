"""Cached prefixes: reported, exact, of the weights that serve, and of whoever left them."""

import asyncio

import pytest

from tests.contract.harness import SLOTS, greedy, prompt, request, run, scored, underway
from tests.contract.test_interruption import unfinished

pytestmark = pytest.mark.asyncio(loop_scope="session")

BLOCK = 128
"""Tokens that an engine may cache at once only; a shorter prompt may never be found."""


async def test_a_prompt_that_comes_again_is_cached_until_the_weights_change(served):
    start = prompt(200, 70)
    for version in (0, 1, 0):
        if served.engine.serving().version != version:
            await served.engine.load_weights(served.weights[version])
        first = await run(served.engine, request("first", start, max_tokens=8))
        again = await run(served.engine, request("again", start, max_tokens=8))
        assert first.num_cached == 0, "nobody asked for it under these weights"
        assert (BLOCK <= again.num_cached < len(start)) == served.caches_prefixes
        assert again.token_ids == first.token_ids == greedy(served.references[version], start, 8)
        expected = scored(served.references[version], start, first.token_ids)
        assert first.logprobs == pytest.approx(expected, abs=1e-4)
        assert again.logprobs == pytest.approx(expected, abs=1e-4)


async def test_siblings_share_their_prompt(served):
    """First those that come together, then those that come while the others run."""
    start = prompt(180, 71)
    sampled = {"max_tokens": 40, "temperature": 1.0}
    together = [
        asyncio.create_task(run(served.engine, request(f"s{i}", start, seed=i, **sampled)))
        for i in range(SLOTS // 2)
    ]
    running = await underway(served.engine, request("running", start, seed=90, **sampled))
    later = [
        asyncio.create_task(run(served.engine, request(f"l{i}", start, seed=50 + i, **sampled)))
        for i in range(SLOTS)
    ]
    turns = await asyncio.gather(*together, running, *later)
    for turn in turns:
        expected = scored(served.references[0], start, turn.token_ids)
        assert turn.logprobs == pytest.approx(expected, abs=1e-4)
    assert len({tuple(turn.token_ids) for turn in turns}) == len(turns)
    cached = [turn.num_cached >= BLOCK for turn in turns[-SLOTS:]]
    assert cached == [served.caches_prefixes] * SLOTS


async def test_a_turn_finds_the_turns_before_it(served):
    """Each conversation its own, however many there are."""
    talks = [list(prompt(130, 80 + i)) for i in range(SLOTS)]
    for number in range(3):
        turns = await asyncio.gather(
            *(
                run(served.engine, request(f"t{i}.{number}", talk, max_tokens=20))
                for i, talk in enumerate(talks)
            )
        )
        for talk, turn in zip(talks, turns, strict=True):
            assert turn.num_cached >= (BLOCK if number and served.caches_prefixes else 0)
            expected = scored(served.references[0], talk, turn.token_ids)
            assert turn.logprobs == pytest.approx(expected, abs=1e-4)
            talk += [*turn.token_ids, *prompt(5, number)]


async def test_a_resumed_request_finds_what_it_left(served):
    start = prompt(150, 72)
    whole = greedy(served.references[0], start, 90)
    head = await underway(served.engine, request("head", start, max_tokens=90))
    await served.engine.interrupt(["head"])
    cut = await head
    kept = min(len(cut.token_ids), 80)  # it may have come to its end before the interrupt came
    rest = [*start, *cut.token_ids[:kept]]
    tail = await run(served.engine, request("tail", rest, max_tokens=90 - kept))
    assert (tail.num_cached >= BLOCK) == served.caches_prefixes
    assert cut.token_ids[:kept] + tail.token_ids == whole
    expected = scored(served.references[0], start, whole)
    assert cut.logprobs[:kept] + tail.logprobs == pytest.approx(expected, abs=1e-4)


async def test_consumers_that_go_away_leave_neither_requests_nor_harm(served):
    """They go while they run or wait, beside siblings that stay; then all ask once more."""
    starts = [prompt(140, 73 + i % 2) for i in range(2 * SLOTS)]
    tasks = [
        asyncio.create_task(run(served.engine, request(f"a{i}", start, max_tokens=60)))
        for i, start in enumerate(starts)
    ]
    for gone in tasks[::3]:
        await asyncio.sleep(0.01)
        gone.cancel()
    stayed = await asyncio.gather(*tasks, return_exceptions=True)
    again = await asyncio.gather(
        *(
            run(served.engine, request(f"b{i}", start, max_tokens=60))
            for i, start in enumerate(starts)
        )
    )
    assert unfinished(served) == 0
    expected = {start: greedy(served.references[0], start, 60) for start in set(starts)}
    for start, before, after in zip(starts, stayed, again, strict=True):
        assert after.token_ids == expected[start]
        if not isinstance(before, asyncio.CancelledError):
            assert before.token_ids == expected[start]
    assert any(isinstance(before, asyncio.CancelledError) for before in stayed)
