"""Sampling over cuts: no random number is used for two tokens, and the same cut repeats itself."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

import pytest

from consumers.rollout.engines.base import GenerateRequest
from tests.contract.harness import logits_of, prompt, request, run, scored
from tests.contract.transparency.checks import LOGPROB_TOLERANCE, assert_same, assert_traced
from tests.contract.transparency.conftest import AT_ONCE, SLOTS
from tests.factories.cuts.conversations import task
from tests.factories.cuts.cutting import Worker, play_all
from tests.factories.cuts.plan import random_cuts, summary

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

FIRST = 10_000
ENGINES = ["transformers", pytest.param("vllm", marks=pytest.mark.vllm)]


def random_number(engine: str, request: GenerateRequest, index: int) -> tuple[int, int]:
    """What decides the token of this index in a request: generator or hash, and place in it."""
    if engine == "vllm":
        from consumers.rollout.engines.vllm.engine import _generator_seed

        return _generator_seed(request), index
    return request.seed, len(request.token_ids) + index


def used(engine: str, workers: Sequence[Worker]) -> Counter[tuple[int, int]]:
    """How often each random number decided a token."""
    return Counter(
        random_number(engine, request, index)
        for worker in workers
        for request, came in worker.engine.requests
        for index in range(len(came))
    )


@pytest.mark.parametrize("engine", ENGINES)
async def test_no_random_number_is_used_twice(park, tell, engine: str) -> None:
    workers = await park.workers([f"{engine}-0", f"{engine}-1"])
    tasks = [task(FIRST + n, sampled=True) for n in range(60)]
    whole = await play_all(tasks, workers, [()] * len(tasks), at_once=AT_ONCE)
    workers = await park.workers([f"{engine}-0", f"{engine}-1"])
    cuts = [random_cuts(one.rollout, random.Random(f"cuts {n}")) for n, one in enumerate(whole)]
    cut = await play_all(tasks, workers, cuts, at_once=AT_ONCE)
    counts = used(engine, workers)
    assert set(counts.values()) == {1}
    assert counts.total() == sum(one.rollout.progress.tokens.num_sampled for one in cut)
    assert sum(len(one.handed) for one in cut) > len(cut)
    for one in cut:
        assert_traced(one)
    tell(summary(f"{engine}, random numbers", cut))


@pytest.mark.parametrize("engine", ENGINES)
async def test_the_same_cut_gives_the_same_tokens(park, tell, engine: str) -> None:
    """One after the other, for the sums of a batch depend on who is in it. Logprobs differ in the
    last digits, as the second time finds the first's prefixes cached."""
    workers = await park.workers([f"{engine}-0", f"{engine}-1"])
    tasks = [task(FIRST + n, sampled=True, longest=90) for n in range(25)]
    whole = await play_all(tasks, workers, [()] * len(tasks), at_once=1)
    cuts = [
        random_cuts(one.rollout, random.Random(f"cuts {n}"), live=False)
        for n, one in enumerate(whole)
    ]
    first, again = [await play_all(tasks, workers, cuts, at_once=1) for _ in range(2)]
    tell(summary(f"{engine}, the same cuts twice", first))
    for one, other in zip(first, again, strict=True):
        assert one.workers == other.workers
        assert_same(one, other)
    assert sum(len(one.handed) for one in first) > len(first)


@pytest.mark.parametrize("engine", ENGINES)
async def test_logprobs_over_cuts_are_of_the_distribution_sampled_from(park, engine: str) -> None:
    workers = await park.workers([f"{engine}-0", f"{engine}-1"])
    tasks = [task(FIRST + n, sampled=True) for n in range(100)]
    tasks = [one for one in tasks if one.sampling.top_p == 1 and not one.sampling.top_k]
    whole = await play_all(tasks, workers, [()] * len(tasks), at_once=AT_ONCE)
    cuts = [random_cuts(one.rollout, random.Random(f"cuts {n}")) for n, one in enumerate(whole)]
    for asked, one in zip(
        tasks, await play_all(tasks, workers, cuts, at_once=AT_ONCE), strict=True
    ):
        tokens = one.rollout.progress.tokens
        logits = logits_of(park.oracle, tokens.token_ids.tolist())
        expected = (logits / asked.sampling.temperature).log_softmax(-1)
        for place in tokens.mask_array.nonzero()[0].tolist():
            logprob = float(expected[place - 1, tokens.token_ids[place]])
            assert tokens.logprobs[place] == pytest.approx(logprob, abs=LOGPROB_TOLERANCE)
    assert len(tasks) > 10


@pytest.mark.parametrize("engine", ENGINES)
async def test_more_seeded_prompts_than_one_step_can_prefill_come_at_once(
    park, engine: str
) -> None:
    """As after a swap, when a whole fleet's snapshots are taken up."""
    (worker,) = await park.workers([f"{engine}-0"])
    asked = [
        request(f"p{n}", prompt(200, n), max_tokens=20, temperature=1.0, seed=n)
        for n in range(SLOTS)
    ]
    turns = await asyncio.gather(*(run(worker.engine.inner, one) for one in asked))
    for one, turn in zip(asked, turns, strict=True):
        assert turn.reason == "length"
        expected = scored(park.oracle, one.token_ids, turn.token_ids)
        assert turn.logprobs == pytest.approx(expected, abs=LOGPROB_TOLERANCE)
