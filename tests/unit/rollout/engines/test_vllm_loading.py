"""What vLLM's workers hold together, told by workers of ours."""

from dataclasses import replace
from pathlib import Path

import pytest

from consumers.rollout.engines.base import EngineFailed, WeightsRefused
from consumers.rollout.engines.vllm.loading import Loading, joined
from infra.weights.fingerprint import entries_of, fingerprint
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
    """Two that hold everything whole."""

    def __init__(self, first: PreparedWeights) -> None:
        self.held = [dict(first.tensors), dict(first.tensors)]
        self.asked: list[list[str] | None] = []
        self.given = first
        self.refusal = ""
        self.breaks = False

    async def __call__(self, method: str, args: tuple = ()) -> list:
        if method == "warren_layout":
            return [
                [(n, "float32", list(t.shape), 0, 0, t.shape[0]) for n, t in held.items()]
                for held in self.held
            ]
        if method == "warren_differing":
            return [[], []]
        if method == "warren_check":
            return ["", self.refusal]
        self.asked.append(args[1])
        if self.breaks:
            raise RuntimeError("Call to warren_load method failed: no space")
        names = self.given.tensors.keys() if args[1] is None else args[1]
        for held in self.held:
            held.update({name: self.given.tensors[name] for name in names})
        return [
            {"entries": entries_of({name: held[name] for name in names}), "differing": []}
            for held in self.held
        ]

    async def load(self, loading: Loading, weights: PreparedWeights) -> str:
        self.given = weights
        await loading.check(weights)
        return await loading.load(weights)


@pytest.fixture
async def loaded(versions):
    workers = Workers(versions[0])
    loading = Loading(workers)
    await loading.learn(versions[0].model_folder)
    assert await workers.load(loading, versions[0]) == versions[0].fingerprint
    return workers, loading


def changed(old: PreparedWeights, new: PreparedWeights, *names: str) -> PreparedWeights:
    tensors = dict(old.tensors) | {name: new.tensors[name] for name in names}
    return replace(
        old,
        version=2,
        tensors=tensors,
        fingerprint=fingerprint(tensors),
        base_fingerprint=old.fingerprint,
        changed=frozenset(names),
    )


NAMES = ("lm_head.weight", "model.norm.weight")


async def test_only_what_changed_is_copied_when_the_base_is_held(loaded, versions):
    workers, loading = loaded
    delta = changed(*versions, *NAMES)
    assert await workers.load(loading, delta) == delta.fingerprint
    assert workers.asked == [None, list(NAMES)]


async def test_on_another_base_all_is_copied(loaded, versions):
    workers, loading = loaded
    await workers.load(loading, versions[1])
    delta = changed(*versions, *NAMES)
    assert await workers.load(loading, delta) == delta.fingerprint
    assert workers.asked == [None, None, None]


async def test_one_refusal_is_a_refusal(loaded, versions):
    workers, loading = loaded
    workers.refusal = "the files do not fit"
    with pytest.raises(WeightsRefused, match="version 1: the files do not fit"):
        await loading.check(versions[1])


async def test_a_load_that_breaks_off_fails_the_engine_and_leaves_no_base(loaded, versions):
    workers, loading = loaded
    workers.breaks = True
    with pytest.raises(EngineFailed, match=r"version 1 was loaded in part.*no space"):
        await workers.load(loading, versions[1])
    workers.breaks = False
    await workers.load(loading, changed(*versions, *NAMES))
    assert workers.asked[-1] is None


async def test_a_worker_that_holds_something_else_fails_the_engine(loaded, versions):
    workers, loading = loaded

    class Deaf(dict):
        def update(self, other):
            super().update({name: t for name, t in other.items() if "norm" not in name})

    workers.held[1] = Deaf(workers.held[1])
    with pytest.raises(EngineFailed, match=r"do not hold its .*norm"):
        await workers.load(loading, versions[1])


async def test_a_slice_that_differs_fails_the_engine(versions):
    class Wrong(Workers):
        async def __call__(self, method: str, args: tuple = ()) -> list:
            answers = await super().__call__(method, args)
            if method == "warren_load":
                answers[1]["differing"] = ["lm_head.weight"]
            return answers

    workers = Wrong(versions[0])
    loading = Loading(workers)
    await loading.learn(versions[0].model_folder)
    with pytest.raises(EngineFailed, match=r"do not hold its lm_head\.weight"):
        await workers.load(loading, versions[0])


async def test_what_vllm_holds_otherwise_than_the_folder_is_not_served(versions):
    class Repacked(Workers):
        async def __call__(self, method: str, args: tuple = ()) -> list:
            if method == "warren_differing":
                return [[], ["lm_head.weight"]]
            return await super().__call__(method, args)

    with pytest.raises(EngineFailed, match=r"lm_head\.weight.*replaced in place"):
        await Loading(Repacked(versions[0])).learn(Path("folder"))


def test_slices_are_joined():
    assert joined([[("a", "float32", [8, 2], 0, 0, 4)], [("a", "float32", [8, 2], 0, 4, 8)]]) == {
        "a": ("float32", (8, 2))
    }
    assert joined([[("s", "float32", [], 0, 0, 1)]]) == {"s": ("float32", ())}


@pytest.mark.parametrize(
    ("second", "complaint"),
    [
        (("a", "float32", [8, 2], 0, 5, 8), "4 of 8"),
        (("a", "float32", [8, 2], 0, 4, 7), "7 of 8"),
        (("a", "float32", [9, 2], 0, 4, 9), "disagree"),
        (("a", "bfloat16", [8, 2], 0, 4, 8), "disagree"),
    ],
)
def test_a_hole_or_a_contradiction_is_found(second, complaint):
    with pytest.raises(EngineFailed, match=complaint):
        joined([[("a", "float32", [8, 2], 0, 0, 4)], [second]])
