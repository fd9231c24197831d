"""A recipe that trains an adapter publishes it; workers add it to the model that they have."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from consumers.trainer.learn.learner import Learner
from consumers.trainer.learn.lora import load_policy
from infra.weights.errors import WeightsCorrupt
from infra.weights.local.weights import LocalWeights
from infra.weights.prepared import PreparedWeights
from schemas.config import RunConfig
from tests.factories.models import build
from tests.factories.publishing import Room, Told, recipe

Worker = Callable[[], LocalWeights]


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def config(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """A keyframe every third version."""
    made = recipe(tmp_path_factory.mktemp("adapters"), codec="step", keyframe_every=3, keep=2)
    trainer = made.trainer.model_copy(update={"lora_rank": 4})
    model = made.model.model_copy(update={"dtype": request.param})
    return made.model_copy(update={"trainer": trainer, "model": model})


@pytest.fixture
def learner(config: RunConfig) -> Learner:
    return Learner(config, load_policy(config))


@pytest.fixture
def worker(config: RunConfig, room: Room, tmp_path: Path) -> Iterator[Worker]:
    """Makes workers that hold nothing yet."""
    made: list[LocalWeights] = []

    def new() -> LocalWeights:
        folder, cache = Path(config.model.path), str(tmp_path / "cache")
        made.append(LocalWeights(room.store, model_folder=folder, cache=cache))
        return made[-1]

    yield new
    for one in made:
        one.close()


def train(learner: Learner, step: int) -> None:
    """Move the adapter a little, in another direction each step."""
    generator = torch.Generator().manual_seed(step)
    with torch.no_grad():
        for parameter in learner.policy.masters().values():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)


def is_what_the_learner_has(prepared: PreparedWeights, learner: Learner) -> bool:
    expected = learner.policy.published_tensors(learner.config.model.dtype)
    return all(torch.equal(prepared.tensors[name], expected[name]) for name in expected)


async def test_who_follows_who_skips_and_who_joins_have_the_same(
    room: Room, told: Told, learner: Learner, worker: Worker
) -> None:
    follower, idler = worker(), worker()
    for step in range(6):
        await room.publisher.publish(learner, step)
        published = told.versions[-1]
        assert published.adapter == (step > 0)
        assert bool(published.full) == (step % 3 == 0)
        prepared = follower.prepare(published)
        assert is_what_the_learner_has(prepared, learner)
        if step > 0:
            assert prepared.changed is not None and len(prepared.changed) == 14
        follower.taken(step)
        if step in (0, 4):
            assert is_what_the_learner_has(idler.prepare(published), learner)
            idler.taken(step)
        assert is_what_the_learner_has(worker().prepare(published), learner)
        train(learner, step)


async def test_an_adapter_is_small(room: Room, told: Told, learner: Learner) -> None:
    for step in range(2):
        metrics = await room.publisher.publish(learner, step)
    whole, adapter = (sum(f.size_bytes for f in v.full + v.delta) for v in told.versions)
    assert metrics["weights/bytes"] == adapter < whole / 5


async def test_a_damaged_adapter_is_refused_and_the_next_needs_nothing_of_it(
    room: Room, told: Told, learner: Learner, worker: Worker, tmp_path: Path
) -> None:
    weights = worker()
    for step in range(3):
        await room.publisher.publish(learner, step)
        train(learner, step)
    first, damaged, last = told.versions
    weights.prepare(first)
    weights.taken(0)
    path = tmp_path / "weights" / damaged.folder / damaged.delta[0].name
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(WeightsCorrupt, match="sha256"):
        weights.prepare(damaged)
    assert weights.prepare(last).fingerprint == last.fingerprint


async def test_a_worker_with_another_model_is_told(
    room: Room, told: Told, learner: Learner, tmp_path: Path
) -> None:
    for step in range(2):
        await room.publisher.publish(learner, step)
        train(learner, step)
    path = tmp_path / "other"
    build(path, tied=True, seed=1)
    weights = LocalWeights(room.store, model_folder=path, cache=str(tmp_path / "cache"))
    try:
        with pytest.raises(WeightsCorrupt, match="fingerprint"):
            weights.prepare(told.versions[-1])
    finally:
        weights.close()


async def test_a_successor_begins_with_a_keyframe_and_goes_on(
    room: Room, told: Told, learner: Learner, worker: Worker, config: RunConfig, tmp_path: Path
) -> None:
    for step in range(2):
        await room.publisher.publish(learner, step)
        train(learner, step)
    successor = Room(tmp_path, config, told)
    assert await successor.publisher.rebroadcast() == 1
    for step in (2, 3):
        await successor.publisher.publish(learner, step)
        published = told.versions[-1]
        assert is_what_the_learner_has(worker().prepare(published), learner)
        train(learner, step)
    assert [bool(one.full) for one in told.versions[-2:]] == [True, False]
