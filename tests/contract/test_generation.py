"""What comes out of an engine: tokens, log-probabilities, reasons, limits."""

import asyncio
import math

import pytest
import torch

from tests.contract.harness import (
    FIRST_PROMPT,
    SLOTS,
    greedy,
    logits_of,
    prompt,
    request,
    run,
    scored,
)
from tests.factories import models

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_first_prompt_of_two_tokens_is_survived(served):
    assert served.first_turn.token_ids == greedy(served.references[0], FIRST_PROMPT, 3)


@pytest.mark.parametrize("length", [1, 2, 3, 17, 64, 130])
async def test_greedy_is_the_arg_max(served, length):
    turn = await run(served.engine, request("g", prompt(length), max_tokens=20))
    assert turn.token_ids == greedy(served.references[0], prompt(length), 20)
    assert turn.reason == "length"
    assert turn.versions == [0] * 20


async def test_logprobs_are_the_models_own(served):
    for seed, temperature in enumerate((0.0, 1.0, 1.0)):
        asked = request("l", prompt(9), max_tokens=40, temperature=temperature, seed=seed)
        turn = await run(served.engine, asked)
        expected = scored(served.references[0], prompt(9), turn.token_ids)
        assert turn.logprobs == pytest.approx(expected, abs=1e-4)


def cut(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> dict[int, float]:
    """The distribution after temperature, top-k and top-p, token by token in plain Python."""
    weights = [(math.exp(x / temperature), i) for i, x in enumerate(logits.double().tolist())]
    weights.sort(reverse=True)
    weights = weights[: top_k or None]
    total = sum(weight for weight, _ in weights)
    kept, mass = [], 0.0
    for weight, token in weights:
        if kept and mass >= top_p:
            break
        kept.append((weight, token))
        mass += weight / total
    total = sum(weight for weight, _ in kept)
    return {token: math.log(weight / total) for weight, token in kept}


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(0.7, 0, 1.0), (1.5, 5, 1.0), (1.0, 0, 0.8), (0.8, 20, 0.6), (1.0, 1, 1.0)],
)
async def test_logprobs_are_of_the_distribution_sampled_from(served, temperature, top_k, top_p):
    asked = request(
        "d",
        prompt(6),
        max_tokens=40,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=3,
    )
    if served.refuses(top_k=top_k, top_p=top_p):
        with pytest.raises(ValueError, match="request d has top_k, top_p"):
            await run(served.engine, asked)
        return
    turn = await run(served.engine, asked)
    logits = logits_of(served.references[0], [*prompt(6), *turn.token_ids])[5:-1]
    for row, token, logprob in zip(logits, turn.token_ids, turn.logprobs, strict=True):
        assert logprob == pytest.approx(cut(row, temperature, top_k, top_p)[token], abs=1e-4)


async def test_many_at_once_do_not_disturb_each_other(served):
    lengths = [1 + (7 * index) % 60 for index in range(3 * SLOTS)]
    turns = await asyncio.gather(
        *(
            run(served.engine, request(f"m{i}", prompt(length), max_tokens=4 + i % 13))
            for i, length in enumerate(lengths)
        )
    )
    for i, (length, turn) in enumerate(zip(lengths, turns, strict=True)):
        assert turn.token_ids == greedy(served.references[0], prompt(length), 4 + i % 13)


async def test_settings_are_of_each_request(served):
    settings = [
        {"temperature": 0.0},
        {"temperature": 1.0, "seed": 5},
        {"temperature": 0.6, "top_k": 3, "seed": 6},
        {"temperature": 1.2, "top_p": 0.5, "seed": 7},
        {"temperature": 1.0, "seed": 5},
    ]
    turns = await asyncio.gather(
        *(
            run(served.engine, request(f"s{i}", prompt(8), max_tokens=12, **setting))
            for i, setting in enumerate(settings)
        )
    )
    assert turns[0].token_ids == greedy(served.references[0], prompt(8), 12)
    logits = logits_of(served.references[0], [*prompt(8), *turns[2].token_ids])[7:-1]
    for row, token in zip(logits, turns[2].token_ids, strict=True):
        assert token in row.topk(3).indices
    assert (turns[1].token_ids == turns[4].token_ids) is served.seeded


async def test_the_same_seed_gives_the_same_tokens_and_another_others(served):
    def asked(name: str, seed: int):
        return request(name, prompt(5), max_tokens=30, temperature=1.0, seed=seed)

    first = await run(served.engine, asked("a", 11))
    again = await run(served.engine, asked("b", 11))
    other = await run(served.engine, asked("c", 12))
    huge = await run(served.engine, asked("d", (1 << 64) - 1))
    assert (first.token_ids == again.token_ids) is served.seeded
    assert first.token_ids != other.token_ids
    assert len(huge.token_ids) == 30


async def test_a_stop_token_ends_the_turn_and_is_part_of_it(served):
    whole = greedy(served.references[0], prompt(7), 30)
    stop = whole[9]
    stops = frozenset({stop, 3})
    turn = await run(served.engine, request("s", prompt(7), max_tokens=30, stop_token_ids=stops))
    end = whole.index(stop) + 1
    assert turn.token_ids == whole[:end]
    assert turn.reason == "stop"
    assert turn.logprobs == pytest.approx(
        scored(served.references[0], prompt(7), whole[:end]), abs=1e-4
    )


async def test_a_stop_token_as_the_last_allowed_is_a_stop(served):
    whole = greedy(served.references[0], prompt(7), 30)
    end = whole.index(whole[9]) + 1
    turn = await run(
        served.engine,
        request("s", prompt(7), max_tokens=end, stop_token_ids=frozenset({whole[9]})),
    )
    assert (turn.token_ids, turn.reason) == (whole[:end], "stop")


async def test_the_end_token_stops_only_when_asked_for(served):
    """An untrained model at a high temperature says the end token often enough."""
    turns = await asyncio.gather(
        *(
            run(
                served.engine,
                request(f"e{seed}", prompt(4), max_tokens=100, temperature=2.0, seed=seed),
            )
            for seed in range(2 * SLOTS)
        )
    )
    assert {len(turn.token_ids) for turn in turns} == {100}
    assert any(models.EOS in turn.token_ids[:-1] for turn in turns)


async def test_the_context_ends_the_turn(served):
    room = 3
    asked = request("c", prompt(models.CONTEXT - room), max_tokens=50)
    turn = await run(served.engine, asked)
    assert (len(turn.token_ids), turn.reason) == (room, "length")
    expected = scored(served.references[0], prompt(models.CONTEXT - room), turn.token_ids)
    assert turn.logprobs == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {"token_ids": (5, models.VOCAB_SIZE)},
        {"token_ids": (-1, 5)},
        {"token_ids": ()},
        {"token_ids": tuple([5] * models.CONTEXT)},
        {"max_tokens": 0},
        {"temperature": -1.0},
        {"temperature": math.nan},
        {"top_p": 0.0},
        {"top_k": -1},
    ],
)
async def test_what_cannot_be_generated_is_refused(served, changes):
    asked = request("r", **({"token_ids": (5, 6)} | changes))
    with pytest.raises(ValueError, match="request r"):
        await run(served.engine, asked)
    assert (await run(served.engine, request("r", (5, 6), max_tokens=1))).reason == "length"


async def test_an_id_runs_once_at_a_time(served):
    stream = served.engine.generate(request("twice", prompt(5), max_tokens=200))
    await anext(stream)
    with pytest.raises(ValueError, match="twice"):
        await run(served.engine, request("twice", prompt(5)))
    await stream.aclose()
    assert (await run(served.engine, request("twice", prompt(5)))).reason == "length"
