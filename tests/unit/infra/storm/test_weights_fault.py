"""Weights are damaged in time, or it does not count."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from infra.storm.faults import weights
from infra.storm.schedule import Planned
from infra.storm.watch import Seen, Watch
from infra.storm.world import World
from infra.weights.errors import WeightsCorrupt
from infra.weights.store import WeightStore
from schemas.control import WeightFile, WeightsPublished
from schemas.storm import FaultKind
from tests.unit.infra.storm.judged_runs import RUN_ID, RunMaker

WHOLE = bytes(range(256))


@pytest.fixture
def run(tmp_path: Path) -> RunMaker:
    return RunMaker(tmp_path)


@pytest.fixture
def world(run: RunMaker, tmp_path: Path) -> World:
    return world_of(run, tmp_path)


def world_of(run: RunMaker, tmp_path: Path) -> World:
    """A run folder, and a worker to be seen."""
    nothing: Any = None
    return World(
        config=run.config,
        folder=run.folder,
        entry=tmp_path,
        own=tmp_path,
        node=nothing,
        proxy=nothing,
        roles_url="",
        hostile=nothing,
        watch=Watch(nothing, run.folder),
        processes=("trainer", "rollout-1"),
        queues=(),
    )


class Fault:
    """How far the fault has come: nothing may appear, or be named, before it has looked."""

    def __init__(self) -> None:
        self.looked = threading.Event()
        self.asked: set[int] = set()

    async def has_looked(self) -> None:
        """It knows which versions were there before."""
        assert await asyncio.to_thread(self.looked.wait, 30)

    async def has_harmed(self, version: int) -> None:
        """And it has asked whether somebody could have read it whole."""
        while version not in self.asked:
            await asyncio.sleep(0.001)


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> Fault:
    seen = Fault()
    versions, manifest = weights._versions, WeightStore.manifest

    def look(store: WeightStore) -> Sequence[str]:
        found = versions(store)
        seen.looked.set()
        return found

    def ask(store: WeightStore, version: int) -> WeightsPublished | None:
        found = manifest(store, version)
        seen.asked.add(version)
        return found

    monkeypatch.setattr(weights, "_versions", look)
    monkeypatch.setattr(WeightStore, "manifest", ask)
    return seen


def name_it(run: RunMaker, folder: Path) -> None:
    """The version's manifest."""
    run.manifests.create(
        WeightsPublished(
            run_id=RUN_ID,
            version=weights.version_of(folder.name),
            incarnation=1,
            step=1,
            folder=folder.name,
            full=(WeightFile(name="model.safetensors", size_bytes=len(WHOLE), sha256="0" * 64),),
            fingerprint="f",
        )
    )


async def begin(run: RunMaker, fault: Fault, version: int, *, named_before: bool) -> Path:
    """A version appears, and is harmed."""
    store = Path(run.folder.weights(run.config))
    partial = store / ".partial"
    partial.mkdir(parents=True)
    (partial / "model.safetensors").write_bytes(WHOLE)
    folder = store / f"v{version:08d}.i1.0123abcd"
    if named_before:
        name_it(run, folder)
    partial.rename(folder)
    await fault.has_harmed(version)
    assert (folder / "model.safetensors").read_bytes() != WHOLE
    return folder


async def test_a_version_that_could_be_read_before_is_no_fault_and_the_next_is_taken(
    run: RunMaker, world: World, fault: Fault
) -> None:
    planned = Planned(at=0.0, kind=FaultKind.WEIGHTS_FLIP, target="weights", seed=3)
    task = asyncio.create_task(weights.flip(world, planned))
    await fault.has_looked()
    await begin(run, fault, 1, named_before=True)
    await asyncio.sleep(0.1)
    name_it(run, await begin(run, fault, 2, named_before=False))
    beat = Seen(at=1.0, pid=1, rollout_ids=(), counters={}, version=2)
    world.watch.latest["rollout-1"] = beat
    await asyncio.sleep(0.3)
    assert not task.done()
    world.watch.latest["rollout-1"] = Seen(at=2.0, pid=1, rollout_ids=(), counters={}, version=3)
    outcome = await task
    assert outcome is not None
    assert (outcome.survived, outcome.target) == (True, "v2/model.safetensors")


async def test_of_a_version_that_can_be_had_in_two_ways_both_are_harmed(
    run: RunMaker, world: World, fault: Fault
) -> None:
    planned = Planned(at=0.0, kind=FaultKind.WEIGHTS_TRUNCATE, target="weights", seed=3)
    task = asyncio.create_task(weights.truncate(world, planned))
    await fault.has_looked()
    store = Path(run.folder.weights(run.config))
    partial = store / ".partial"
    partial.mkdir(parents=True)
    for name in ("delta.bin", "model-00001-of-00002.safetensors"):
        (partial / name).write_bytes(WHOLE)
    folder = store / "v00000004.i1.0123abcd"
    partial.rename(folder)
    await fault.has_harmed(4)
    name_it(run, folder)
    world.watch.latest["rollout-1"] = Seen(at=1.0, pid=1, rollout_ids=(), counters={}, version=5)
    outcome = await task
    assert outcome is not None
    assert outcome.target == "v4/delta.bin+model-00001-of-00002.safetensors"
    assert outcome.detail.count("of 256 bytes left") == 2


async def test_a_store_behind_a_url_is_harmed_like_a_folder(tmp_path: Path, fault: Fault) -> None:
    url = f"memory://{tmp_path.name}"
    run = RunMaker(tmp_path, weights={"store": url})
    store, folder = WeightStore.at(url), "v00000004.i1.0123abcd"
    planned = Planned(at=0.0, kind=FaultKind.WEIGHTS_FLIP, target="weights", seed=3)
    world = world_of(run, tmp_path)
    task = asyncio.create_task(weights.flip(world, planned))
    await fault.has_looked()
    (file,) = store.files.write(folder, {"delta.bin": (WHOLE,)})
    await fault.has_harmed(4)
    assert store.files.read(f"{folder}/delta.bin") != WHOLE
    name_it(run, Path(folder))
    world.watch.latest["rollout-1"] = Seen(at=1.0, pid=1, rollout_ids=(), counters={}, version=5)
    outcome = await task
    assert outcome is not None
    assert (outcome.survived, outcome.target) == (True, "v4/delta.bin")
    published = store.manifest(4)
    assert published is not None
    with pytest.raises(WeightsCorrupt, match="sha256"):
        store.fetch(published, file, tmp_path)
