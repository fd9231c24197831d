"""The simulated engine in the place of the others, and an oracle in the place of the model."""

from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest_asyncio
import torch

from consumers.rollout.engines.simulated.profile import Course, Profile
from tests.contract.harness import SIMULATED_PROFILE, Served, started, two_versions
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
    weights = two_versions(root, built[1])
    engine, first = await started("simulated", root / "model0", weights[0])
    references = [Oracle(model, version) for version, model in enumerate(built)]
    yield Served("simulated", engine, weights, references, first)
    await engine.close()
