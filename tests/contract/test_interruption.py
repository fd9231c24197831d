"""Interrupting: every sampled token is kept, and going on equals never having stopped."""

import asyncio

import pytest

from consumers.rollout.engines.base import TokenChunk
from tests.contract.harness import SLOTS, greedy, prompt, request, run, scored, underway
from tests.contract.sglang.server import unfinished_at_server
from tests.factories import models

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_the_running_keep_every_token(served):
    tasks = await asyncio.gather(
        *(
            underway(served.engine, request(f"r{i}", prompt(5, i), max_tokens=240))
            for i in range(SLOTS)
        )
    )
    await served.engine.interrupt()
    reasons = set()
    for i, task in enumerate(tasks):
        turn = await asyncio.wait_for(task, 20)
        assert turn.token_ids
        # Another process goes on while this one is kept from interrupting it.
        assert turn.reason == ("length" if len(turn.token_ids) == 240 else "interrupted")
        reasons.add(turn.reason)
        assert turn.token_ids == greedy(served.references[0], prompt(5, i), len(turn.token_ids))
        expected = scored(served.references[0], prompt(5, i), turn.token_ids)
        assert turn.logprobs == pytest.approx(expected, abs=1e-4)
    assert "interrupted" in reasons


async def test_only_the_named_are_interrupted(served):
    first = await underway(served.engine, request("one", prompt(5), max_tokens=200))
    second = await underway(served.engine, request("two", prompt(6), max_tokens=200))
    await served.engine.interrupt({"one", "unknown"})
    assert (await first).reason == "interrupted"
    assert (await second).reason == "length"


async def test_the_queued_end_with_nothing(served):
    running = await asyncio.gather(
        *(
            underway(served.engine, request(f"r{i}", prompt(5, i), max_tokens=240))
            for i in range(SLOTS)
        )
    )
    queued = [
        asyncio.create_task(run(served.engine, request(f"q{i}", prompt(9, i)))) for i in range(5)
    ]
    await asyncio.sleep(0.01)
    await served.engine.interrupt([f"q{i}" for i in range(5)])
    for task in queued:
        turn = await asyncio.wait_for(task, 20)
        assert (turn.token_ids, turn.reason) == ([], "interrupted")
    assert not any(task.done() for task in running)
    await served.engine.interrupt()
    assert {(await task).reason for task in running} == {"interrupted"}


async def test_the_finished_and_unknown_are_left_alone(served):
    turn = await run(served.engine, request("done", prompt(5)))
    await served.engine.interrupt(["done", "never"])
    await served.engine.interrupt([])
    await served.engine.interrupt()
    assert turn.reason == "length"
    assert (await run(served.engine, request("done", prompt(5)))).token_ids == turn.token_ids


async def test_an_unread_stream_loses_nothing(served):
    stream = served.engine.generate(request("slow", prompt(5), max_tokens=240))
    items = [await anext(stream)]
    await asyncio.sleep(0.05)
    await served.engine.interrupt(["slow"])
    items += [item async for item in stream]
    tokens = [t for item in items if isinstance(item, TokenChunk) for t in item.token_ids]
    assert tokens == greedy(served.references[0], prompt(5), len(tokens))
    assert items[-1].reason == "interrupted"


async def test_an_interrupt_that_races_the_end_loses_nothing(served):
    whole = greedy(served.references[0], prompt(6), 6)
    reasons = set()
    for delay in range(40):
        task = asyncio.create_task(run(served.engine, request("race", prompt(6), max_tokens=6)))
        await asyncio.sleep(delay * 0.0005)
        await served.engine.interrupt(["race"])
        turn = await asyncio.wait_for(task, 20)
        assert turn.token_ids == whole[: len(turn.token_ids)]
        assert (turn.reason == "length") == (len(turn.token_ids) == 6)
        reasons.add(turn.reason)
    # a server may have sampled six tokens before it hears of the interrupt
    assert "interrupted" in reasons or served.name.startswith("sglang")


async def test_going_on_equals_never_having_stopped_at_every_position(served):
    start = prompt(11)
    whole = (await run(served.engine, request("whole", start, max_tokens=24))).token_ids
    for position in range(1, 24):
        head = await run(served.engine, request("head", start, max_tokens=position))
        rest = request("tail", [*start, *head.token_ids], max_tokens=24 - position)
        tail = await run(served.engine, rest)
        assert head.token_ids + tail.token_ids == whole


async def test_many_cut_anywhere_go_on_as_if_uncut(served):
    async def cut_once(index: int):
        start = prompt(3 + 5 * index, index)
        head = await run(served.engine, request(f"h{index}", start, max_tokens=100))
        rest = [*start, *head.token_ids]
        if head.reason == "length":
            return start, head.token_ids
        asked = request(f"t{index}", rest, max_tokens=100 - len(head.token_ids))
        return start, head.token_ids + (await run(served.engine, asked)).token_ids

    tasks = [asyncio.create_task(cut_once(index)) for index in range(SLOTS)]
    for index in range(SLOTS):
        await asyncio.sleep(0.004)
        await served.engine.interrupt([f"h{index}"])
    for start, tokens in await asyncio.gather(*tasks):
        assert tokens == greedy(served.references[0], start, 100)


async def test_a_sampled_turn_goes_on_as_if_uncut(served):
    """The engine's noise must be a function of seed and position, whatever else runs."""
    if served.name == "sglang_unseeded":
        assert not served.engine.seeded
        return
    if served.name == "vllm":
        first = await run(served.engine, request("v", prompt(5), temperature=1.0, seed=4))
        again = await run(served.engine, request("v", prompt(5), temperature=1.0, seed=4))
        assert first.token_ids == again.token_ids
        return
    start = prompt(11)
    sampled = {"temperature": 1.0, "top_p": 0.95, "seed": 77}
    asked = request("whole", start, max_tokens=24, **sampled)
    whole = (await run(served.engine, asked)).token_ids
    others = [
        asyncio.create_task(
            run(served.engine, request(f"o{i}", prompt(4 + 9 * i), max_tokens=150, temperature=1.0))
        )
        for i in range(5)
    ]
    for position in range(1, 24):
        asked = request("tail", [*start, *whole[:position]], max_tokens=24 - position, **sampled)
        assert whole[:position] + (await run(served.engine, asked)).token_ids == whole
    await served.engine.interrupt()
    await asyncio.gather(*others)


async def test_consumers_that_go_away_free_their_slots(served):
    streams = [
        served.engine.generate(request(f"gone{i}", prompt(5, i), max_tokens=240))
        for i in range(2 * SLOTS)
    ]
    for stream in streams[:SLOTS]:
        await anext(stream)
    waiting = [asyncio.create_task(anext(stream)) for stream in streams[SLOTS:]]
    await asyncio.sleep(0.01)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    for stream in streams:
        await stream.aclose()
    turns = await asyncio.gather(
        *(run(served.engine, request(f"gone{i}", prompt(5, i))) for i in range(SLOTS))
    )
    for i, turn in enumerate(turns):
        assert turn.token_ids == greedy(served.references[0], prompt(5, i), 16)
    assert unfinished(served) == 0


def unfinished(served) -> int:
    """Requests that the engine still knows, by its own books."""
    if served.name in ("vllm", "simulated"):
        return served.engine.num_unfinished()
    if "sglang" in served.name:
        return unfinished_at_server(served.engine._server.url)
    loop = served.engine._loop
    return len(loop._streams) + len(loop._waiting) + len(loop._batch.sequences)


async def test_the_context_is_a_limit_for_the_resumed_too(served):
    start = prompt(models.CONTEXT - 20)
    whole = await run(served.engine, request("w", start, max_tokens=100))
    assert len(whole.token_ids) == 20
    rest = request("r", [*start, *whole.token_ids[:7]], max_tokens=100 - 7)
    assert (await run(served.engine, rest)).token_ids == whole.token_ids[7:]
