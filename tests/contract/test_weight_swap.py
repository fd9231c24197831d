"""Swapping weights: every later token is of the new version, none before; or nothing happens."""

import asyncio
from dataclasses import replace

import pytest
import torch

from consumers.rollout.engines.base import WeightsRefused
from infra.weights.fingerprint import fingerprint
from tests.contract.harness import SLOTS, greedy, logits_of, prompt, request, run, scored, underway

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_what_is_served_is_measured(served):
    assert served.engine.serving().version == 0
    assert served.engine.serving().fingerprint == served.weights[0].fingerprint
    await served.engine.load_weights(served.weights[1])
    assert served.engine.serving().version == 1
    assert served.engine.serving().fingerprint == served.weights[1].fingerprint
    assert served.engine.serving().fingerprint == fingerprint(served.references[1].state_dict())


async def test_a_swap_changes_every_later_turn_and_swaps_back(served):
    for version in (0, 1, 0, 1):
        if served.engine.serving().version != version:
            await served.engine.load_weights(served.weights[version])
        turn = await run(served.engine, request("t", prompt(9), max_tokens=20))
        assert turn.token_ids == greedy(served.references[version], prompt(9), 20)
        assert turn.versions == [version] * 20
        expected = scored(served.references[version], prompt(9), turn.token_ids)
        assert turn.logprobs == pytest.approx(expected, abs=1e-4)


async def test_the_running_go_on_under_the_new_weights_from_one_token_to_the_next(served):
    asked = [request(f"r{i}", prompt(4 + i, i), max_tokens=230 - 3 * i) for i in range(SLOTS + 2)]
    tasks = await asyncio.gather(*(underway(served.engine, one) for one in asked[:SLOTS]))
    tasks += [asyncio.create_task(run(served.engine, one)) for one in asked[SLOTS:]]
    await served.engine.load_weights(served.weights[1])
    turns = await asyncio.wait_for(asyncio.gather(*tasks), 60)
    crossed = 0
    for i, turn in enumerate(turns):
        assert turn.reason == "length"
        old = turn.versions.count(0)
        assert turn.versions == [0] * old + [1] * (len(turn.versions) - old)
        crossed += 0 < old < len(turn.versions)
        start = prompt(4 + i, i)
        under_old = scored(served.references[0], start, turn.token_ids)
        under_new = scored(served.references[1], start, turn.token_ids)
        assert turn.logprobs[:old] == pytest.approx(under_old[:old], abs=1e-4)
        assert turn.logprobs[old:] == pytest.approx(under_new[old:], abs=1e-4)
    assert crossed >= SLOTS


async def test_a_prefix_computed_with_old_weights_is_never_used(served):
    start = prompt(200)
    for version in (0, 1, 0):
        if served.engine.serving().version != version:
            await served.engine.load_weights(served.weights[version])
        for _ in range(2):
            turn = await run(served.engine, request("p", start, max_tokens=8))
            expected = scored(served.references[version], start, turn.token_ids)
            assert turn.logprobs == pytest.approx(expected, abs=1e-4)


async def test_requests_made_during_a_swap_are_served_after_it(served):
    loading = asyncio.create_task(served.engine.load_weights(served.weights[1]))
    turns = await asyncio.gather(
        *(run(served.engine, request(f"d{i}", prompt(6, i), max_tokens=12)) for i in range(4))
    )
    await loading
    for i, turn in enumerate(turns):
        for version in (0, 1):
            where = [k for k, found in enumerate(turn.versions) if found == version]
            expected = scored(served.references[version], prompt(6, i), turn.token_ids)
            for k in where:
                assert turn.logprobs[k] == pytest.approx(expected[k], abs=1e-4)


def changed(weights, name, tensor):
    tensors = {key: value for key, value in weights.tensors.items() if key != name}
    if tensor is not None:
        tensors[name] = tensor
    return replace(weights, version=2, tensors=tensors, fingerprint=fingerprint(tensors))


NORM = "model.layers.1.input_layernorm.weight"
QUERY = "model.layers.0.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("name", "change", "complaint"),
    [
        (QUERY, lambda tensor: tensor[:-1].clone(), "q_proj"),
        (QUERY, lambda tensor: tensor.to(torch.bfloat16), "bfloat16"),
        (NORM, lambda tensor: None, "missing"),
        ("model.extra.weight", lambda tensor: torch.zeros(3), "unknown"),
    ],
)
async def test_what_does_not_fit_is_refused_and_the_old_serves(served, name, change, complaint):
    before = await run(served.engine, request("b", prompt(9), max_tokens=20))
    given = served.weights[1]
    task = asyncio.create_task(run(served.engine, request("r", prompt(7), max_tokens=100)))
    await asyncio.sleep(0.02)
    with pytest.raises(WeightsRefused, match=complaint):
        await served.engine.load_weights(changed(given, name, change(given.tensors.get(name))))
    assert served.engine.serving().version == 0
    assert served.engine.serving().fingerprint == served.weights[0].fingerprint
    assert (await task).token_ids == greedy(served.references[0], prompt(7), 100)
    after = await run(served.engine, request("a", prompt(9), max_tokens=20))
    assert (after.token_ids, after.versions) == (before.token_ids, before.versions)


async def test_a_head_that_repeats_the_embedding_is_welcome(served):
    """A tied model's state names its head a second time."""
    if "lm_head.weight" in served.weights[1].tensors:
        head = served.weights[1].tensors["lm_head.weight"]
        refused = changed(served.weights[1], "lm_head.weight", head[:-1].clone())
        with pytest.raises(WeightsRefused, match="lm_head"):
            await served.engine.load_weights(refused)
        return
    embedding = served.weights[1].tensors["model.embed_tokens.weight"]
    other = changed(served.weights[1], "lm_head.weight", embedding + 1)
    with pytest.raises(WeightsRefused, match="lm_head"):
        await served.engine.load_weights(other)
    twice = changed(served.weights[1], "lm_head.weight", embedding.clone())
    await served.engine.load_weights(twice)
    assert served.engine.serving().fingerprint == served.weights[1].fingerprint


async def test_the_two_models_differ_enough_for_these_tests(served):
    first = logits_of(served.references[0], prompt(9)).log_softmax(-1)
    second = logits_of(served.references[1], prompt(9)).log_softmax(-1)
    assert (first - second).abs().mean() > 0.5
