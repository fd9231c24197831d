"""The contract, where what is served is not what was published."""

import asyncio
import copy

import pytest
import torch

from consumers.rollout.engines.base import EngineFailed
from infra.weights.adapter import merged
from infra.weights.fingerprint import entries_of, fingerprint
from infra.weights.local.weights import LocalWeights
from infra.weights.publication import Base, adapted, casted, publication
from infra.weights.store import WeightStore
from tests.contract.core import *  # noqa: F403
from tests.contract.harness import prompt, request, run, scored, started, two_versions, underway
from tests.contract.processes import descendants
from tests.contract.quantised.conftest import rounded
from tests.contract.test_generation import (
    test_logprobs_are_the_models_own,
)
from tests.contract.test_vllm_files import (
    test_files_damaged_after_they_were_prepared_are_refused,
)
from tests.contract.test_weight_files import (
    check_serves,
    test_a_delta_on_something_else_is_loaded_as_a_whole,
    test_a_delta_on_what_is_served,
    test_another_checksum_is_refused_and_the_old_serves,
    test_deltas_one_after_the_other_and_back,
)
from tests.contract.test_weight_swap import (
    test_the_two_models_differ_enough_for_these_tests,
)
from tests.factories import models

__all__ = [
    "test_a_delta_on_something_else_is_loaded_as_a_whole",
    "test_a_delta_on_what_is_served",
    "test_another_checksum_is_refused_and_the_old_serves",
    "test_deltas_one_after_the_other_and_back",
    "test_files_damaged_after_they_were_prepared_are_refused",
    "test_logprobs_are_the_models_own",
    "test_the_two_models_differ_enough_for_these_tests",
]

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.vllm,
    pytest.mark.timeout(300),  # several processes import vLLM before the first
]


QUERY = "model.layers.0.self_attn.q_proj"
WORKERS = "tensor_parallel_size"


async def held(served) -> list[str]:
    return await served.engine._call("warren_digest")


async def test_the_fingerprint_is_what_was_published_and_what_is_held_follows_from_it(served):
    found = []
    for version in (0, 1, 0, 1):
        await served.engine.load_weights(served.weights[version])
        given = served.weights[version]
        assert served.engine.serving().fingerprint == given.fingerprint
        assert given.fingerprint == fingerprint(given.tensors)
        found.append(await held(served))
    assert found[0] == found[2] != found[1] == found[3]


def change_of(start, generator) -> dict[str, torch.Tensor]:
    """An adapter of rank 2 for one layer."""
    low, high = (
        torch.randn(2, start.shape[1], generator=generator),
        torch.randn(start.shape[0], 2, generator=generator),
    )
    return {f"{QUERY}.lora_A": 0.1 * low, f"{QUERY}.lora_B": 0.5 * high}


async def test_deltas_and_adapters_are_other_ways_to_the_whole(served, originals, tmp_path):
    store = WeightStore.at(tmp_path / "store")
    start = casted(originals[0].state_dict(), "float32")
    name, generator = f"{QUERY}.weight", torch.Generator().manual_seed(0)
    states = [start]
    for _ in range(2):
        moved = states[-1][name] + 0.1 * torch.randn(start[name].shape, generator=generator)
        states.append(start | {name: moved})
    adapter = change_of(start[name], generator)
    states.append(start | dict(merged(start, adapter)))
    base = Base(version=1, tensors=states[1], entries=entries_of(states[1]))
    chain = {
        1: publication(states[1]),
        2: publication(states[2], base=base, keyframe=False),
        3: adapted(states[3], adapter, keyframe=False, base_version=1),
    }
    local = LocalWeights(
        store, model_folder=served.weights[0].model_folder, cache=str(tmp_path / "cache")
    )
    seen = set()
    for version, new in chain.items():
        published = store.put(new, version=version, run_id="r", incarnation=1, step=version)
        assert bool(published.full) == (version == 1)
        weights = local.prepare(published)
        await served.engine.load_weights(weights)
        local.taken(version)
        model = copy.deepcopy(originals[0])
        model.load_state_dict(states[version], strict=False)
        await check_serves(served, weights, rounded(model, served.engine._options[WORKERS]))
        seen.update(await held(served))
    local.close()
    assert len(seen) >= 3


async def test_rounding_is_what_the_logprobs_show(served, originals):
    """The published weights themselves would give others."""
    turn = await run(served.engine, request("o", prompt(9), max_tokens=40))
    other = scored(originals[0], prompt(9), turn.token_ids)
    assert max(abs(a - b) for a, b in zip(turn.logprobs, other, strict=True)) > 0.005


async def test_a_load_that_breaks_off_ends_the_engine(int8, tmp_path):
    """In the last layer: those before it hold the new weights already."""
    old = models.build(tmp_path / "model0", tied=False, seed=0)
    broken = copy.deepcopy(old)
    with torch.no_grad():
        broken.model.layers[-1].mlp.down_proj.weight[3, 5] = torch.nan
    weights = two_versions(tmp_path, broken)
    before = descendants()
    engine, _ = await started("vllm", tmp_path / "model0", weights[0], quantization=int8)
    running = await underway(engine, request("r", prompt(5), max_tokens=240))
    with pytest.raises(EngineFailed, match=r"version 1 was loaded in part.*a weight is no number"):
        await engine.load_weights(weights[1])
    ended = await asyncio.wait_for(running, 30)
    assert (ended.reason, set(ended.versions)) == ("interrupted", {0})
    with pytest.raises(EngineFailed, match="loaded in part"):
        engine.serving()
    await engine.close()
    assert not descendants(apart_from=before)
