"""Weights as they come from a store: damaged ones, and ones of which only a part has changed."""

import copy
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from consumers.rollout.engines.base import WeightsRefused
from infra.weights.errors import WeightsCorrupt
from infra.weights.prepared import PreparedWeights
from infra.weights.store import WeightStore
from tests.contract.harness import greedy, prompt, request, run, scored
from tests.factories.loading import prepare

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHANGED = frozenset(
    f"model.layers.{name}.weight"
    for name in ("1.input_layernorm", "0.mlp.down_proj", "0.self_attn.k_proj")
)


def published(root: Path, tensors, model_folder: Path):
    """The manifest of version 2, and its files, beside which lies the model's config."""
    manifest = WeightStore.at(root / "store").publish(
        tensors, version=2, run_id="contract", incarnation=1, step=1, dtype="float32"
    )
    folder = root / "store" / manifest.folder
    shutil.copy(model_folder / "config.json", folder)
    return manifest, sorted(folder.glob("*.safetensors"))


def published_newer(served, root: Path):
    return published(root, served.weights[1].tensors, served.weights[0].model_folder)


def partly(served, root: Path) -> tuple[PreparedWeights, torch.nn.Module]:
    """Version 2 is version 0 with a few tensors of version 1, and the model of that."""
    model = copy.deepcopy(served.references[0])
    newer = served.references[1].state_dict()
    model.load_state_dict({name: newer[name] for name in CHANGED}, strict=False)
    folder = served.weights[0].model_folder
    manifest, files = published(root, model.state_dict(), folder)
    weights = prepare(root / "store", manifest, folder)
    assert weights.files == tuple(files)
    base = served.weights[0].fingerprint
    return replace(weights, base_fingerprint=base, changed=CHANGED), model


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def changed(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [Path.unlink, emptied, truncated, changed])
async def test_what_is_damaged_is_refused_and_the_old_serves(served, tmp_path, damage):
    before = await run(served.engine, request("b", prompt(9), max_tokens=20))
    manifest, files = published_newer(served, tmp_path)
    damage(files[0])
    with pytest.raises((WeightsCorrupt, WeightsRefused)):
        await served.engine.load_weights(
            prepare(tmp_path / "store", manifest, served.weights[0].model_folder)
        )
    assert served.engine.serving().version == 0
    assert served.engine.serving().fingerprint == served.weights[0].fingerprint
    after = await run(served.engine, request("a", prompt(9), max_tokens=20))
    assert after.token_ids == before.token_ids
    assert after.logprobs == pytest.approx(before.logprobs, abs=1e-4)  # some may be cached now


async def test_another_checksum_is_refused_and_the_old_serves(served, tmp_path):
    manifest, _ = published_newer(served, tmp_path)
    wrong = manifest.model_copy(update={"fingerprint": served.weights[0].fingerprint})
    with pytest.raises(WeightsCorrupt, match="fingerprint"):
        await served.engine.load_weights(
            prepare(tmp_path / "store", wrong, served.weights[0].model_folder)
        )
    assert served.engine.serving().version == 0
    turn = await run(served.engine, request("a", prompt(9), max_tokens=20))
    assert turn.token_ids == greedy(served.references[0], prompt(9), 20)


async def test_a_delta_on_what_is_served(served, tmp_path):
    weights, model = partly(served, tmp_path)
    await served.engine.load_weights(weights)
    await check_serves(served, weights, model)


async def test_a_delta_on_something_else_is_loaded_as_a_whole(served, tmp_path):
    weights, model = partly(served, tmp_path)
    await served.engine.load_weights(served.weights[1])
    await served.engine.load_weights(weights)
    await check_serves(served, weights, model)


async def test_deltas_one_after_the_other_and_back(served, tmp_path):
    """The base of each is what was measured after the one before."""
    weights, model = partly(served, tmp_path)
    back = replace(
        served.weights[0], version=3, base_fingerprint=weights.fingerprint, changed=CHANGED
    )
    for _ in range(2):
        await served.engine.load_weights(weights)
        await check_serves(served, weights, model)
        await served.engine.load_weights(back)
        await check_serves(served, back, served.references[0])


async def check_serves(served, weights: PreparedWeights, model) -> None:
    assert served.engine.serving().version == weights.version
    assert served.engine.serving().fingerprint == weights.fingerprint
    turn = await run(served.engine, request("d", prompt(9), max_tokens=20))
    assert turn.versions == [weights.version] * 20
    assert turn.token_ids == greedy(model, prompt(9), 20)
    assert turn.logprobs == pytest.approx(scored(model, prompt(9), turn.token_ids), abs=1e-4)
