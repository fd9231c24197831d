"""The log-probability is that of the distribution really sampled from, by Hugging Face's own
logits processors, one option at a time and together."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from consumers.rollout.engines.options import TAKEN
from tests.contract.harness import logits_of, prompt, request, run
from tests.factories import models

pytestmark = pytest.mark.asyncio(loop_scope="session")

PROMPT = prompt(6)
WARPERS = {
    "temperature": TemperatureLogitsWarper,
    "min_p": MinPLogitsWarper,
    "top_k": TopKLogitsWarper,
    "top_p": TopPLogitsWarper,
}
"""In vLLM's order. Hugging Face's `generate` has min-p last."""


def distributions(model: Any, sampled: list[int], asked: Any) -> torch.Tensor:
    """Log-probabilities of every token at each sampled position, (positions, vocabulary)."""
    processors = LogitsProcessorList()
    if asked.min_tokens:
        processors.append(
            MinNewTokensLengthLogitsProcessor(
                len(PROMPT), asked.min_tokens, sorted(asked.stop_token_ids)
            )
        )
    if penalty := asked.options.get("repetition_penalty"):
        processors.append(RepetitionPenaltyLogitsProcessor(penalty))
    if asked.temperature:
        off = {"temperature": 1.0, "min_p": 0.0, "top_k": 0, "top_p": 1.0}
        for name, warper in WARPERS.items():
            if getattr(asked, name) != off[name]:
                processors.append(warper(getattr(asked, name)))
    tokens = torch.tensor([[*PROMPT, *sampled]])
    logits = logits_of(model, tokens[0])
    rows = [
        processors(tokens[:, :length], logits[length - 1 : length]).log_softmax(-1)
        for length in range(len(PROMPT), tokens.shape[1])
    ]
    return torch.cat(rows)


def around(asked: Any) -> list[Any]:
    """The request, and twice with its edges moved by what rounding may decide: whether one more
    token is left."""
    return [
        replace(
            asked,
            top_p=asked.top_p if asked.top_p == 1 else asked.top_p * (1 + shift),
            min_p=asked.min_p * (1 - shift),
        )
        for shift in (0.0, 1e-5, -1e-5)
    ]


STOPS = frozenset({models.EOS, *range(20, 60)})


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.7},
        {"top_k": 5},
        {"top_p": 0.8},
        {"min_p": 0.05},
        {"min_p": 0.3, "temperature": 1.5},
        {"min_p": 0.02, "top_k": 20, "top_p": 0.7, "temperature": 1.2},
        {"min_tokens": 12, "stop_token_ids": STOPS},
        {"min_tokens": 24, "stop_token_ids": STOPS, "top_p": 0.9, "min_p": 0.01},
        {"min_tokens": 12, "stop_token_ids": STOPS, "temperature": 0.0},
    ],
    ids=lambda options: "-".join(options),
)
async def test_logprobs_are_those_of_hugging_faces_processors(served, options):
    options = {"max_tokens": 24, "temperature": 1.0, **options}
    if served.refuses(**options):
        with pytest.raises(ValueError, match="request o has min_p"):
            await run(served.engine, request("o", PROMPT, **({"max_tokens": 24} | options)))
        return
    for seed in (3, 4):
        asked = request("o", PROMPT, **(options | {"seed": seed}))
        turn = await run(served.engine, asked)
        assert len(turn.token_ids) >= asked.min_tokens
        stated = [
            distributions(served.references[0], turn.token_ids, one)[
                range(len(turn.token_ids)), turn.token_ids
            ].tolist()
            for one in around(asked)
        ]
        for logprob, *expected in zip(turn.logprobs, *stated, strict=True):
            assert any(logprob == pytest.approx(one, abs=1e-4) for one in expected)
        assert all(map(math.isfinite, turn.logprobs))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_min_tokens_are_there_before_a_stop(served, temperature):
    """With nearly all tokens stopping, the first one allowed to stop does."""
    stops = frozenset(range(3, models.VOCAB_SIZE)) - {9, 10, 11} | {models.EOS}
    asked = {"max_tokens": 20, "temperature": temperature, "stop_token_ids": stops, "seed": 1}
    at_once = await run(served.engine, request("n", PROMPT, **asked))
    held = await run(served.engine, request("m", PROMPT, min_tokens=7, **asked))
    assert at_once.reason == "stop"
    assert len(at_once.token_ids) < 7 <= len(held.token_ids)
    assert not stops & set(held.token_ids[:7])
    rest = await run(
        served.engine,
        request("r", [*PROMPT, *held.token_ids[:3]], **(asked | {"min_tokens": 4})),
    )
    if temperature == 0 or served.name == "transformers":
        assert held.token_ids[3:] == rest.token_ids, "what remains of min_tokens after a cut"


@pytest.mark.parametrize(
    "changes",
    [{"min_p": -0.1}, {"min_p": 1.1}, {"min_tokens": -1}, {"min_tokens": 17}],
)
async def test_options_out_of_range_are_refused(served, changes):
    with pytest.raises(ValueError, match=f"request r has {next(iter(changes))}"):
        await run(served.engine, request("r", PROMPT, **changes))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_penalties_are_in_the_logprobs_or_refused(served, temperature):
    """They count what was in the request, and what was sampled since. SGLang is only seen to be
    told of them (`contract/sglang`): the fake has none."""
    if "sglang" in served.name:
        return
    asked = request(
        "p",
        PROMPT,
        max_tokens=24,
        temperature=temperature,
        seed=5,
        options={"repetition_penalty": 1.6},
    )
    if "repetition_penalty" not in TAKEN.get(served.name, ()):
        with pytest.raises(ValueError, match=r"sampling options.*repetition_penalty"):
            await run(served.engine, asked)
        return
    turn = await run(served.engine, asked)
    stated = distributions(served.references[0], turn.token_ids, asked)
    chosen = stated[range(len(turn.token_ids)), turn.token_ids].tolist()
    assert turn.logprobs == pytest.approx(chosen, abs=1e-4)


async def test_an_option_that_no_list_names_is_refused(served):
    asked = request("x", PROMPT, options={"logits_processors": []})
    with pytest.raises(ValueError, match="sampling options"):
        await run(served.engine, asked)
