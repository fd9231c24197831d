"""Every engine with every model that it must run; each is started once."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.contract.harness import Served, started, two_versions
from tests.contract.processes import descendants
from tests.contract.sglang.server import WITH_SERVER
from tests.factories import models


def pytest_collection_modifyitems(config, items):
    """What is in a file of one engine is asked of that engine only."""
    foreign = [
        item
        for item in items
        if item.path.name.startswith("test_vllm")
        and hasattr(item, "callspec")
        and not item.callspec.params.get("session_engine", "vllm").startswith("vllm")
    ]
    if foreign:
        config.hook.pytest_deselected(items=foreign)
        items[:] = [item for item in items if item not in foreign]


@pytest_asyncio.fixture(
    scope="session",
    loop_scope="session",
    params=[
        "transformers-untied",
        "transformers-tied",
        pytest.param("vllm-untied", marks=pytest.mark.vllm),
        pytest.param("vllm-tied", marks=pytest.mark.vllm),
        "sglang-untied",
        "sglang-tied",
        pytest.param("sglang_server-untied", marks=[pytest.mark.sglang, WITH_SERVER]),
        pytest.param("sglang_unseeded-tied", marks=[pytest.mark.sglang, WITH_SERVER]),
    ],
)
async def session_engine(request, tmp_path_factory) -> AsyncIterator[Served]:
    name, kind = request.param.split("-")
    root = tmp_path_factory.mktemp(request.param)
    references = [
        models.build(root / f"model{seed}", tied=kind == "tied", seed=seed) for seed in (0, 1)
    ]
    weights = two_versions(root, references[1])
    before = descendants()
    engine, first = await started(name, root / "model0", weights[0])
    yield Served(name, engine, weights, references, first)
    await engine.close()
    assert not descendants(apart_from=before), "closing leaves no process"


@pytest_asyncio.fixture(loop_scope="session")
async def served(session_engine) -> AsyncIterator[Served]:
    await session_engine.back_to_start()
    yield session_engine
    await asyncio.wait_for(session_engine.engine.interrupt(), 10)
