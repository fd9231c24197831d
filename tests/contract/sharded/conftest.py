"""vLLM with two workers that hold a slice each. They share the one key-value head, and head and
embedding are tied."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.contract.harness import Served, started, two_versions
from tests.contract.processes import descendants
from tests.factories import models


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def session_engine(tmp_path_factory) -> AsyncIterator[Served]:
    root = tmp_path_factory.mktemp("sharded")
    references = [
        models.build(root / f"model{seed}", tied=True, seed=seed, kv_heads=1) for seed in (0, 1)
    ]
    weights = two_versions(root, references[1])
    before = descendants()
    engine, first = await started("vllm", root / "model0", weights[0], tensor_parallel_size=2)
    yield Served("vllm", engine, weights, references, first)
    await engine.close()
    assert not descendants(apart_from=before), "closing leaves no process"
