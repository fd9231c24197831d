"""What changed is published, and now and then all of it; whoever reads it gets the same weights."""

import errno
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from consumers.trainer.learn.learner import Learner
from consumers.trainer.learn.policy import Policy
from infra.weights.errors import StoreFailed
from infra.weights.fingerprint import fingerprint
from infra.weights.local.weights import LocalWeights
from schemas.config import RunConfig
from schemas.control import WeightsPublished
from tests.factories.publishing import Room, Told, move, recipe

Read = Callable[[WeightsPublished], str]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """A keyframe every third version."""
    root = tmp_path_factory.mktemp("deltas")
    return recipe(root, codec="step", keyframe_every=3, keep=2)


@pytest.fixture
def learner(config: RunConfig) -> Learner:
    """With the starting weights."""
    return Learner(config, Policy.load(Path(config.model.path)))


@pytest.fixture
def read(config: RunConfig, room: Room, tmp_path: Path) -> Iterator[Read]:
    """Fingerprint of a version as a rollout worker gets it, who follows."""
    weights = LocalWeights(
        room.store, model_folder=Path(config.model.path), cache=str(tmp_path / "cache")
    )

    def follow(published: WeightsPublished) -> str:
        prepared = weights.prepare(published)
        weights.taken(published.version)
        return fingerprint(prepared.tensors)

    yield follow
    weights.close()


def now(learner: Learner) -> str:
    """Fingerprint of what the learner has."""
    return fingerprint(learner.policy.published_tensors("float32"))


async def test_deltas_keyframes_and_what_stays(
    room: Room, learner: Learner, told: Told, read: Read
) -> None:
    for step in range(9):
        metrics = await room.publisher.publish(learner, step)
        newest = told.versions[-1]
        assert read(newest) == newest.fingerprint == now(learner)
        files = (*newest.full, *newest.delta)
        assert metrics["weights/bytes"] == sum(file.size_bytes for file in files)
        assert metrics["weights/keyframe"] == bool(newest.full)
        if step:
            assert 0 < metrics["weights/changed_share"] < 1
            assert metrics["weights/delta_share"] < 0.6
        move(learner, 2.0**-10)
    bases = [version.base_version for version in told.versions]
    assert bases == [None, *range(8)]
    assert [v.version for v in told.versions if v.full] == [0, 3, 6]
    kept = [version.folder for version in told.versions[3:]]
    assert room.store.files.names() == ["manifests", *kept]


async def test_who_joins_reads_the_same(
    room: Room, learner: Learner, told: Told, read: Read
) -> None:
    for step in range(6):
        await room.publisher.publish(learner, step)
        move(learner, 2.0**-10)
    newest = told.versions[-1]
    assert not newest.full
    assert read(newest) == newest.fingerprint


async def test_a_delta_that_is_nearly_all_is_not_stored(
    room: Room, learner: Learner, told: Told, read: Read, caplog: pytest.LogCaptureFixture
) -> None:
    await room.publisher.publish(learner, 0)
    with torch.no_grad():
        for master in learner.policy.masters().values():
            master.normal_()
    with caplog.at_level(logging.INFO):
        metrics = await room.publisher.publish(learner, 1)
    share = f"{metrics['weights/delta_share']:.0%}"
    assert f"(a delta would be {share} of it)" in caplog.text
    newest = told.versions[-1]
    assert newest.full and not newest.delta and newest.base_version is None
    assert metrics["weights/delta_share"] > 0.6
    assert read(newest) == now(learner)
    move(learner, 2.0**-10)
    await room.publisher.publish(learner, 2)
    assert told.versions[-1].base_version == 1 and not told.versions[-1].full


async def test_a_worker_that_cannot_go_on_gets_a_keyframe(
    room: Room, learner: Learner, told: Told, read: Read
) -> None:
    """It followed up to v1; the delta of v2 is damaged."""
    for step in range(3):
        await room.publisher.publish(learner, step)
        move(learner, 2.0**-10)
    read(told.versions[1])
    damaged = told.versions[2]
    room.store.files.remove(damaged.folder)
    room.refused = damaged.version
    await room.publisher.publish(learner, 3)
    assert told.versions[-1].full
    assert read(told.versions[-1]) == now(learner)
    room.refused = -1
    move(learner, 2.0**-10)
    await room.publisher.publish(learner, 4)
    assert not told.versions[-1].full


async def test_it_is_whole_when_that_is_asked_for(room: Room, learner: Learner, told: Told) -> None:
    for step, whole in ((0, False), (1, True), (2, False)):
        await room.publisher.publish(learner, step, whole=whole)
    assert [bool(version.full) for version in told.versions] == [True, True, False]


async def test_what_did_not_reach_the_store_is_no_base(
    room: Room, learner: Learner, told: Told, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    await room.publisher.publish(learner, 0)
    read(told.versions[-1])
    move(learner, 2.0**-10)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(room.store.files, "write", full)
        with pytest.raises(StoreFailed, match="disk is full"):
            await room.publisher.publish(learner, 1)
    move(learner, 2.0**-10)
    await room.publisher.publish(learner, 2)
    assert (told.versions[-1].version, told.versions[-1].base_version) == (1, 0)
    assert read(told.versions[-1]) == now(learner)


async def test_a_successor_goes_on_with_a_keyframe(
    config: RunConfig, learner: Learner, told: Told, room: Room, tmp_path: Path, read: Read
) -> None:
    """The step that it repeats publishes nothing, and is what its first delta starts from."""
    await room.publisher.publish(learner, 0)
    read(told.versions[-1])
    successor = Room(tmp_path, config, told)
    assert await successor.publisher.publish(learner, 0) == {
        "time/publish_s": pytest.approx(0, abs=60)
    }
    move(learner, 2.0**-10)
    await successor.publisher.publish(learner, 1)
    newest = told.versions[-1]
    assert [version.version for version in told.versions] == [0, 0, 1]
    assert newest.base_version == 0
    assert read(newest) == now(learner)


async def test_a_successor_that_knows_no_base_publishes_whole(
    config: RunConfig, learner: Learner, told: Told, room: Room, tmp_path: Path
) -> None:
    for step in range(2):
        await room.publisher.publish(learner, step)
        move(learner, 2.0**-10)
    successor = Room(tmp_path, config, told)
    await successor.publisher.publish(learner, 0)
    newest = told.versions[-1]
    assert (newest.version, newest.base_version) == (2, None) and newest.full


async def test_a_number_whose_manifest_is_damaged_is_passed_over(
    room: Room, learner: Learner, told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    await room.publisher.publish(learner, 0)
    room.store.files.create("manifests/00000001.json", b'{"version": 1')
    await room.publisher.publish(learner, 1)
    newest = told.versions[-1]
    assert newest.version == 2 and newest.full
    assert "00000001.json is no manifest" in caplog.text


async def test_without_deltas_no_copy_is_kept(
    config: RunConfig, learner: Learner, told: Told, tmp_path: Path
) -> None:
    whole = config.model_copy(
        update={"weights": config.weights.model_copy(update={"codec": "full"})}
    )
    room = Room(tmp_path, whole, told)
    for step in range(3):
        metrics = await room.publisher.publish(learner, step)
        assert "weights/delta_share" not in metrics
        move(learner, 2.0**-10)
    assert all(version.full and not version.delta for version in told.versions)
    assert room.publisher._base is None
