"""Every engine with every model that it must run; each is started once."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from consumers.rollout.engines.base import GenerateRequest
from infra.weights.reader import prepare, starting
from infra.weights.store import WeightStore
from tests.contract.harness import FIRST_PROMPT, Served, make_engine, run
from tests.contract.processes import children
from tests.factories import models


@pytest_asyncio.fixture(
    scope="session",
    loop_scope="session",
    params=[
        "transformers-untied",
        "transformers-tied",
        pytest.param("vllm-untied", marks=pytest.mark.vllm),
        pytest.param("vllm-tied", marks=pytest.mark.vllm),
    ],
)
async def session_engine(request, tmp_path_factory) -> AsyncIterator[Served]:
    name, kind = request.param.split("-")
    root = tmp_path_factory.mktemp(request.param)
    references = [
        models.build(root / f"model{seed}", tied=kind == "tied", seed=seed) for seed in (0, 1)
    ]
    store = WeightStore(root / "store")
    published = store.publish(
        references[1].state_dict(),
        version=1,
        run_id="contract",
        incarnation=1,
        step=1,
        dtype="float32",
    )
    weights = [
        starting(root / "model0", "float32"),
        prepare(store.folder, published, root / "model0"),
    ]
    before = children()
    engine = make_engine(name, root / "model0")
    await engine.start(weights[0])
    asked = GenerateRequest(request_id="first", token_ids=FIRST_PROMPT, max_tokens=3, temperature=0)
    first = await run(engine, asked)
    yield Served(name, engine, weights, references, first)
    await engine.close()
    assert children() == before, "closing leaves no process"


@pytest_asyncio.fixture(loop_scope="session")
async def served(session_engine) -> AsyncIterator[Served]:
    await session_engine.back_to_start()
    yield session_engine
    await asyncio.wait_for(session_engine.engine.interrupt(), 10)
