"""What the workers of a vLLM that quantises were given, and hold: told by workers of ours."""

from dataclasses import replace
from pathlib import Path

import pytest

from consumers.rollout.engines.base import EngineFailed, WeightsRefused
from consumers.rollout.engines.vllm.reloading import Reloading
from infra.roles.errors import ConfigError
from infra.weights.fingerprint import entries_of
from infra.weights.prepared import PreparedWeights
from tests.factories import models
from tests.factories.loading import starting


@pytest.fixture(scope="module")
def versions(tmp_path_factory) -> list[PreparedWeights]:
    root = tmp_path_factory.mktemp("versions")
    for seed in (0, 1):
        models.build(root / str(seed), tied=False, seed=seed)
    return [starting(root / str(seed), "float32", version=seed) for seed in (0, 1)]


class Workers:
    """Two that are given everything, and hold a word for it."""

    def __init__(self, versions: list[PreparedWeights]) -> None:
        self.by_folder = {str(one.model_folder): one for one in versions}
        self.word = "first "
        self.missing: list[str] = []
        self.quantised = ["model.layers.0.mlp"]
        self.drops = ""
        self.breaks = False
        self.held = self.made_of(versions[0])

    def made_of(self, weights: PreparedWeights) -> list[str]:
        return [f"{self.word}{rank} of {weights.fingerprint}" for rank in (0, 1)]

    async def __call__(self, method: str, args: tuple = ()) -> list:
        if method == "warren_quantised":
            return [self.quantised, self.quantised]
        if method == "warren_digest":
            return self.held
        if method == "warren_check":
            return ["", ""]
        paths = args[0]
        given = self.by_folder[str(Path(paths[0]).parent)]
        if method == "warren_formats":
            return 2 * [[(n, "float32", list(t.shape)) for n, t in given.tensors.items()]]
        assert method == "warren_reload"
        if self.breaks:
            raise RuntimeError("Call to warren_reload method failed: no space")
        self.held = self.made_of(given)
        names = sorted(given.tensors.keys() - {self.drops})
        return [
            {
                "entries": entries_of({name: given.tensors[name] for name in names[rank::2]}),
                "missing": self.missing,
                "held": self.held[rank],
            }
            for rank in (0, 1)
        ]


@pytest.fixture
async def loaded(versions):
    workers = Workers(versions)
    loading = Reloading(workers, "float32")
    await loading.learn(versions[0].model_folder)
    return workers, loading


async def test_the_fingerprint_is_of_what_all_were_given(loaded, versions):
    _, loading = loaded
    for weights in (versions[0], versions[1], versions[0]):
        await loading.check(weights)
        assert await loading.load(weights) == weights.fingerprint


async def test_what_does_not_fit_the_folder_is_refused(loaded, versions):
    _, loading = loaded
    tensors = dict(versions[1].tensors)
    del tensors["model.norm.weight"]
    with pytest.raises(WeightsRefused, match=r"model\.norm\.weight is missing"):
        await loading.check(replace(versions[1], tensors=tensors))


async def test_a_tensor_that_nobody_was_given_fails_the_engine(loaded, versions):
    workers, loading = loaded
    workers.drops = "model.norm.weight"
    with pytest.raises(EngineFailed, match=r"was given fingerprint .* for version 1"):
        await loading.load(versions[1])


async def test_what_nothing_was_loaded_into_fails_the_engine(loaded, versions):
    workers, loading = loaded
    workers.missing = ["lm_head.weight"]
    with pytest.raises(EngineFailed, match=r"version 1 left lm_head\.weight as it was"):
        await loading.load(versions[1])


async def test_a_reload_that_breaks_off_fails_the_engine(loaded, versions):
    workers, loading = loaded
    workers.breaks = True
    with pytest.raises(EngineFailed, match=r"version 1 was loaded in part.*no space"):
        await loading.load(versions[1])


async def test_a_version_that_becomes_something_else_the_second_time_fails_the_engine(
    loaded, versions
):
    workers, loading = loaded
    await loading.load(versions[1])
    workers.word = "other "
    with pytest.raises(EngineFailed, match="version 1 came before"):
        await loading.load(versions[1])


async def test_a_reload_that_is_not_the_first_load_is_not_served(versions):
    workers = Workers(versions)
    workers.word = "other "
    with pytest.raises(EngineFailed, match="other bytes than its own first load"):
        await Reloading(workers, "float32").learn(versions[0].model_folder)


async def test_a_method_that_finds_nothing_to_quantise_is_refused(versions):
    workers = Workers(versions)
    workers.quantised = []
    with pytest.raises(ConfigError, match="quantises no layer"):
        await Reloading(workers, "float32").learn(versions[0].model_folder)
