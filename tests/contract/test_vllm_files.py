"""vLLM's workers read files of their own: which of them, and what if these are not what they were
when they were prepared."""

from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from consumers.rollout.engines.base import WeightsRefused
from tests.contract.harness import greedy, prompt, request, run
from tests.contract.test_weight_files import (
    CHANGED,
    check_serves,
    emptied,
    partly,
    published_newer,
    truncated,
)
from tests.factories.loading import prepare

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.vllm]


def reshaped(path: Path) -> None:
    tensors = load_file(path)
    name = min(tensors)
    save_file(tensors | {name: tensors[name][:-1].clone()}, path)


@pytest.mark.parametrize("damage", [Path.unlink, emptied, truncated, reshaped])
async def test_files_damaged_after_they_were_prepared_are_refused(served, tmp_path, damage):
    manifest, files = published_newer(served, tmp_path)
    weights = prepare(tmp_path / "store", manifest, served.weights[0].model_folder)
    damage(files[0])
    with pytest.raises(WeightsRefused, match="version 2: the files"):
        await served.engine.load_weights(weights)
    assert served.engine.serving().version == 0
    turn = await run(served.engine, request("a", prompt(9), max_tokens=20))
    assert turn.token_ids == greedy(served.references[0], prompt(9), 20)


async def test_only_what_changed_is_copied(served, tmp_path):
    """The rest of the files is not what the fingerprint says, and does no harm."""
    weights, model = partly(served, tmp_path)
    for path in weights.files:
        tensors = load_file(path)
        save_file({name: tensors[name] * (name in CHANGED) for name in tensors}, path)
    await served.engine.load_weights(weights)
    await check_serves(served, weights, model)
