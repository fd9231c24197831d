"""vLLM that quantises what it loads, with one worker and with two, and Hugging Face models whose
weights were rounded in the same way."""

import copy
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM

from tests.contract.harness import Served, started, two_versions
from tests.contract.processes import descendants
from tests.factories import models

INPUT_SLICED = ("o_proj", "down_proj")
"""With several workers each holds some of the inputs of these, and scales what it holds."""


_SEED = 10
"""Of models whose two best tokens are nowhere as near as rounding errors, in these tests."""


def rounded(model: Any, workers: int = 1) -> Any:
    """A model as it is after its linear layers were rounded to 255 steps per output channel."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for name, layer in model.model.named_modules():
            if isinstance(layer, torch.nn.Linear):
                slices = workers if name.endswith(INPUT_SLICED) else 1
                for part in layer.weight.chunk(slices, dim=1):
                    step = part.abs().max(dim=1).values[:, None] / 127
                    part.copy_(torch.round(part / step) * step)
    return model


@pytest.fixture(scope="session")
def int8(tmp_path_factory) -> Iterator[str]:
    """The name of the method, which is made known as a package's: by an entry point."""
    import tests.contract.quantised.int8 as method

    site = tmp_path_factory.mktemp("site")
    package = site / "warren_test_int8-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: warren-test-int8\nVersion: 1\n")
    (package / "entry_points.txt").write_text(
        f"[vllm.general_plugins]\n{method.NAME} = {method.__name__}:register\n"
    )
    sys.path.insert(0, str(site))
    yield method.NAME
    sys.path.remove(str(site))


@pytest_asyncio.fixture(scope="session", loop_scope="session", params=[1, 2])
async def session_engine(request, tmp_path_factory, int8) -> AsyncIterator[Served]:
    workers = request.param
    root = tmp_path_factory.mktemp(f"int8-{workers}")
    originals = [
        models.build(
            root / f"model{seed}", tied=workers > 1, seed=_SEED + seed, kv_heads=3 - workers
        )
        for seed in (0, 1)
    ]
    weights = two_versions(root, originals[1])
    before = descendants()
    options = {"quantization": int8, "tensor_parallel_size": workers}
    engine, first = await started("vllm", root / "model0", weights[0], **options)
    references = [rounded(model, workers) for model in originals]
    yield Served("vllm", engine, weights, references, first)
    await engine.close()
    assert not descendants(apart_from=before), "closing leaves no process"


@pytest.fixture
def originals(served) -> list[Any]:
    """The models as they were published."""
    folder = served.weights[0].model_folder
    return [
        AutoModelForCausalLM.from_pretrained(folder.with_name(name))
        for name in ("model0", "model1")
    ]
