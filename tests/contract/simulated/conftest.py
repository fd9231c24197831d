"""The simulated engine in the place of the others, and an oracle in the place of the model."""

from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest_asyncio
import torch

from consumers.rollout.engines.base import GenerateRequest
from consumers.rollout.engines.simulated_profile import Course, Profile
from infra.weights.reader import prepare, starting
from infra.weights.store import WeightStore
from tests.contract.harness import FIRST_PROMPT, SIMULATED_PROFILE, Served, make_engine, run
from tests.factories import models


class Oracle:
    """What a model would have to compute for the simulated tokens of seed 0 to be its greedy
    ones: all mass that the profile gives to the token, the rest spread evenly."""

    def __init__(self, model, version: int) -> None:
        self.state_dict = model.state_dict
        self.version = version
        profile = Profile.model_validate(SIMULATED_PROFILE)
        self.course = Course(profile, seed=0, stops=frozenset(), vocab_size=models.VOCAB_SIZE)

    def __call__(self, token_ids, *, use_cache: bool):
        rows = []
        for position in range(1, token_ids.shape[1] + 1):
            mass = torch.tensor(self.course.logprob(position, self.version)).exp()
            row = ((1 - mass) / (models.VOCAB_SIZE - 1)).repeat(models.VOCAB_SIZE)
            row[self.course.token(position, self.version)] = mass
            rows.append(row.log())
        return SimpleNamespace(logits=torch.stack(rows)[None])


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def session_engine(tmp_path_factory) -> AsyncIterator[Served]:
    root = tmp_path_factory.mktemp("simulated")
    built = [models.build(root / f"model{seed}", tied=False, seed=seed) for seed in (0, 1)]
    store = WeightStore(root / "store")
    published = store.publish(
        built[1].state_dict(), version=1, run_id="contract", incarnation=1, step=1, dtype="float32"
    )
    weights = [
        starting(root / "model0", "float32"),
        prepare(store.folder, published, root / "model0"),
    ]
    engine = make_engine("simulated", root / "model0")
    await engine.start(weights[0])
    asked = GenerateRequest(request_id="first", token_ids=FIRST_PROMPT, max_tokens=3, temperature=0)
    first = await run(engine, asked)
    references = [Oracle(model, version) for version, model in enumerate(built)]
    yield Served("simulated", engine, weights, references, first)
    await engine.close()
