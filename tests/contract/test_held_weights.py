"""Versions as a rollout worker holds them: whole at first, then what changed since."""

import copy

import pytest
import pytest_asyncio
import torch

from consumers.rollout.engines.base import WeightsRefused
from infra.weights.fingerprint import fingerprint
from infra.weights.local.weights import LocalWeights
from tests.contract.harness import greedy, prompt, request, run
from tests.factories.weight_chains import ChainStore

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Chain:
    """Versions of one model in a store, each a little different from the one before."""

    def __init__(self, served, root):
        self.served = served
        self.model = copy.deepcopy(served.references[0])
        self.store = ChainStore(root / "store")
        self.store.publish(1, self._tensors())
        self.local = LocalWeights(
            self.store, model_folder=served.weights[0].model_folder, cache=str(root / "cache")
        )

    def _tensors(self):
        named = self.served.weights[0].tensors
        state = self.model.state_dict()
        return {name: state[name].clone() for name in named}

    def move(self, version, parts):
        """The next version: parameters with one of these parts in their names change."""
        torch.manual_seed(version)
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if any(part in name for part in parts):
                    moved = torch.rand(parameter.shape) < 0.05
                    parameter[moved] += 0.5
        self.store.publish(version, self._tensors(), base=version - 1)

    async def load(self, version):
        """Prepare, load, and see that it generates as that version does."""
        engine = self.served.engine
        weights = self.local.prepare(self.store.manifests[version])
        await engine.load_weights(weights)
        self.local.taken(version)
        assert engine.serving().version == version
        assert engine.serving().fingerprint == fingerprint(self.store.versions[version])
        turn = await run(engine, request(f"v{version}", prompt(9), max_tokens=20))
        assert turn.token_ids == greedy(self.model, prompt(9), 20)
        assert set(turn.versions) == {version}
        return weights


@pytest_asyncio.fixture(loop_scope="session")
async def chain(served, tmp_path):
    made = Chain(served, tmp_path)
    yield made
    made.local.close()


async def test_a_whole_version_and_three_that_differ_a_little(chain):
    await chain.load(1)
    for version, part in ((2, "norm"), (3, "q_proj"), (4, "embed_tokens")):
        chain.move(version, [part])
        weights = await chain.load(version)
        assert weights.changed
        assert all(part in name for name in weights.changed)


async def test_several_missed_versions_at_once(chain):
    await chain.load(1)
    for version in (2, 3, 4):
        chain.move(version, ["down_proj", "norm"])
    await chain.load(4)


async def test_what_is_refused_is_dropped_and_the_next_one_fits_what_is_served(chain):
    await chain.load(1)
    engine = chain.served.engine
    true = chain.store.versions[1]
    name = "model.norm.weight"
    strange = {**true, name: true[name].double()}
    chain.store.publish(2, strange)
    with pytest.raises(WeightsRefused):
        await engine.load_weights(chain.local.prepare(chain.store.manifests[2]))
    chain.local.discard()
    assert engine.serving().version == 1
    chain.store.versions[2] = true
    chain.store.publish(3, true, base=2, full=True)
    chain.move(4, ["norm"])
    weights = await chain.load(4)
    assert weights.base_fingerprint == fingerprint(true)
