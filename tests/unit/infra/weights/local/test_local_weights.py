"""What a worker holds: every way to a version, every doubt, and what lies on disk meanwhile."""

import errno
import json
import logging
import os
import shutil
import threading

import pytest
import torch
from transformers.utils.hub import cached_file

from infra.weights.errors import CacheFailed, WeightsCorrupt
from infra.weights.fingerprint import fingerprint
from infra.weights.local import cache as cache_module
from infra.weights.local.weights import LocalWeights
from tests.factories.weight_chains import ChainStore, first_tensors, model_folder, moved


class Desk:
    """A store, and what a worker holds of it."""

    def __init__(self, tmp_path, *, copies=False):
        self.store = ChainStore(tmp_path / "store", copies=copies)
        self.model = model_folder(tmp_path / "model")
        self.place = tmp_path / "cache"
        self.local = LocalWeights(self.store, model_folder=self.model, cache=str(self.place))

    def prepare(self, version):
        prepared = self.local.prepare(self.store.manifests[version])
        self.check(prepared)
        return prepared

    def take(self, version):
        prepared = self.prepare(version)
        self.local.taken(version)
        return prepared

    def check(self, prepared):
        """Bit for bit what was published."""
        true = self.store.versions[prepared.version]
        assert prepared.tensors.keys() == true.keys()
        for name, tensor in true.items():
            assert torch.equal(prepared.tensors[name], tensor), name
            assert prepared.tensors[name].dtype == tensor.dtype
        assert prepared.fingerprint == fingerprint(true) == fingerprint(prepared.tensors)

    def folders(self):
        (cache,) = [path for path in self.place.iterdir() if path.is_dir()]
        return sorted(path.name.split(".")[0] for path in cache.iterdir())


@pytest.fixture
def desk(tmp_path):
    made = Desk(tmp_path)
    yield made
    made.local.close()
    assert list(made.place.iterdir() if made.place.exists() else []) == []


@pytest.mark.parametrize("number", [1, 2, 9])
def test_a_chain_from_what_is_held(desk, number):
    desk.store.chain(number)
    desk.take(0)
    desk.store.fetched.clear()
    prepared = desk.take(number)
    assert desk.store.fetched == [f"{v}/delta.bin" for v in range(1, number + 1)]
    assert prepared.changed == {"layer.weight", "layer.norm.weight"}
    assert prepared.base_fingerprint == fingerprint(desk.store.versions[0])
    assert desk.folders() == [f"v{number:08d}"]


@pytest.mark.parametrize("copies", [False, True])
def test_who_joins_in_the_middle_begins_with_the_newest_keyframe(tmp_path, copies):
    desk = Desk(tmp_path, copies=copies)
    desk.store.chain(7, keyframes=(0, 4))
    prepared = desk.take(7)
    names = ["5/delta.bin", "6/delta.bin", "7/delta.bin"]
    assert desk.store.fetched == [*names, "4/full-0.safetensors", "4/full-1.safetensors"]
    assert (prepared.base_fingerprint, prepared.changed) == ("", None)
    assert desk.folders() == ["v00000007"], "copies are gone"
    assert all(path.exists() for path in desk.store.files(4, "full")), "the store's own are not"
    desk.local.close()


def test_what_did_not_change_is_the_same_file(desk):
    desk.store.chain(1)
    old = desk.take(0)
    before = {path.name: path.stat().st_ino for path in old.files}
    new = desk.prepare(1)
    after = {path.name: path.stat().st_ino for path in new.files}
    same = {name for name, inode in after.items() if before[name] == inode}
    assert len(after) == 3
    assert len(same) == 1, "the embedding"
    desk.check(old)
    desk.local.taken(1)
    desk.check(old)
    desk.check(new)


def test_a_version_that_changes_nothing_writes_nothing(desk):
    desk.store.publish(0, first_tensors())
    desk.store.publish(1, first_tensors(), base=0)
    old = desk.take(0)
    before = {path.stat().st_ino for path in old.files}
    new = desk.take(1)
    assert new.changed == frozenset()
    assert {path.stat().st_ino for path in new.files} == before


def test_a_full_version_after_a_held_one_says_what_differs(desk):
    tensors = first_tensors()
    desk.store.publish(0, tensors)
    desk.take(0)
    desk.store.publish(5, moved(tensors, 5, names=("scale",)))
    prepared = desk.take(5)
    assert prepared.changed == {"scale"}
    assert prepared.base_fingerprint == fingerprint(tensors)


def test_the_folder_is_one_that_other_tools_open(desk):
    desk.store.chain(1)
    prepared = desk.take(1)
    folder = prepared.model_folder
    assert cached_file(folder, "config.json") == str(folder / "config.json")
    assert (folder / "tokenizer.json").read_text() == "{}"
    assert not (folder / "model.safetensors").exists()
    assert set(prepared.files) == set(folder.glob("*.safetensors"))
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == prepared.tensors.keys()
    assert {folder / name for name in index["weight_map"].values()} == set(prepared.files)


def test_a_missing_delta_in_the_middle(desk, caplog):
    desk.store.chain(6, keyframes=(0, 4))
    desk.take(0)
    shutil.rmtree(desk.store.folder / "v2")
    with caplog.at_level(logging.WARNING):
        desk.take(6)
    assert "keyframe 4" in caplog.text
    assert "cannot be made" in caplog.text


def test_who_lacks_a_delta_copies_no_keyframe(desk):
    desk.store.chain(3)
    shutil.rmtree(desk.store.folder / "v2")
    with pytest.raises(WeightsCorrupt, match="keyframe 0"):
        desk.local.prepare(desk.store.manifests[3])
    assert not [name for name in desk.store.fetched if "full" in name]


def test_a_manifest_that_is_gone_in_the_middle(desk):
    desk.store.chain(6, keyframes=(0, 4))
    desk.take(0)
    del desk.store.manifests[2]
    desk.take(6)


@pytest.mark.parametrize("blessed", [False, True])
def test_a_damaged_delta_after_the_last_keyframe_leaves_the_old_state_whole(desk, blessed):
    desk.store.chain(3)
    held = desk.take(1)
    desk.store.damage(2, "delta")
    if blessed:
        desk.store.bless(2)
    for version in (2, 3):
        with pytest.raises(WeightsCorrupt, match="cannot be made"):
            desk.local.prepare(desk.store.manifests[version])
    desk.check(held)
    assert desk.folders() == ["v00000001"]
    desk.store.publish(4, desk.store.versions[3], full=True)
    desk.take(4)


def test_a_damaged_delta_is_not_fetched_for_every_keyframe(desk):
    desk.store.chain(9, keyframes=(0, 2, 4, 6))
    desk.store.damage(9, "delta")
    with pytest.raises(WeightsCorrupt):
        desk.local.prepare(desk.store.manifests[9])
    assert desk.store.fetched.count("9/delta.bin") == 1


def test_a_damaged_keyframe_is_passed_over_for_an_older_one(desk, caplog):
    desk.store.chain(6, keyframes=(0, 4))
    desk.store.damage(4, "full")
    with caplog.at_level(logging.WARNING):
        desk.take(6)
    assert "starting over from keyframe 0, and 6 deltas" in caplog.text


def test_a_damaged_keyframe_with_a_right_checksum_is_found_by_the_digest(desk):
    desk.store.chain(6, keyframes=(0, 4))
    desk.store.damage(4, "full")
    desk.store.bless(4)
    desk.take(6)


def test_another_base_is_found_and_not_used(desk, caplog):
    tensors = first_tensors()
    desk.store.publish(0, tensors)
    first = moved(tensors, 1)
    desk.store.publish(1, first, base=0)
    desk.take(1)
    # the trainer went on from another version 1 than this worker holds
    other = moved(tensors, 11)
    shutil.rmtree(desk.store.folder / "v1")
    desk.store.publish(1, other, base=0)
    desk.store.publish(2, moved(other, 2), base=1)
    prepared = desk.take(2)
    assert prepared.base_fingerprint == fingerprint(first)
    assert "starting over from keyframe 0, and 2 deltas" in caplog.text


def test_a_held_tensor_that_was_harmed_is_found_after_the_delta(desk, caplog):
    desk.store.chain(2)
    held = desk.take(1)
    path = next(path for path in held.files if "00002" in path.name or "00003" in path.name)
    with path.open("r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"harmed!!")
    with caplog.at_level(logging.WARNING):
        desk.take(2)
    assert "another base, or damaged" in caplog.text
    assert "starting over from keyframe 0" in caplog.text


def test_a_delta_of_other_tensors_is_refused(desk):
    tensors = first_tensors()
    desk.store.publish(0, tensors)
    desk.take(0)
    strange = {"embed.weight": tensors["embed.weight"]}
    desk.store.versions[0] = strange
    desk.store.publish(1, strange, base=0)
    with pytest.raises(WeightsCorrupt, match="other tensors"):
        desk.local.prepare(desk.store.manifests[1])


def test_a_wrong_fingerprint_in_the_manifest(desk):
    desk.store.chain(1)
    wrong = desk.store.manifests[1].model_copy(update={"fingerprint": "0" * 64})
    desk.take(0)
    with pytest.raises(WeightsCorrupt, match="its manifest says 0000"):
        desk.local.prepare(wrong)
    desk.take(1)


def test_a_far_held_version_gives_way_to_a_keyframe_that_is_cheaper(desk):
    tensors = first_tensors()
    desk.store.publish(0, tensors)
    desk.take(0)
    for version in range(1, 5):
        tensors = {
            name: torch.randn_like(tensor) if tensor.is_floating_point() else tensor
            for name, tensor in tensors.items()
        }
        desk.store.publish(version, tensors, base=version - 1, full=version == 4)
    desk.store.fetched.clear()
    desk.take(4)
    assert desk.store.fetched == ["4/full-0.safetensors", "4/full-1.safetensors"]


def test_what_the_engine_refuses_is_dropped_and_the_next_is_made_from_the_held(desk):
    desk.store.chain(2)
    held = desk.take(0)
    desk.prepare(1)
    desk.local.discard()
    assert desk.folders() == ["v00000000"]
    desk.check(held)
    assert desk.take(2).base_fingerprint == held.fingerprint


def test_a_newer_one_takes_the_place_of_what_was_prepared(desk):
    desk.store.chain(3)
    desk.take(0)
    desk.prepare(1)
    with pytest.raises(ValueError, match="version 0"):
        desk.local.taken(0)
    prepared = desk.prepare(3)
    assert desk.folders() == ["v00000000", "v00000003"]
    assert prepared.base_fingerprint == fingerprint(desk.store.versions[0])
    desk.local.taken(3)


def test_asked_again_it_trusts_nothing_that_is_held(desk, caplog):
    desk.store.chain(2)
    held = desk.take(1)
    linked = next(path for path in held.files if "00001" in path.name)
    desk.prepare(2)
    with linked.open("r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"harmed!!")
    with caplog.at_level(logging.WARNING):
        desk.take(2)
    assert "from a keyframe" in caplog.text


def test_a_full_disk_is_named_and_leaves_the_old_state(desk, monkeypatch):
    desk.store.chain(2)
    held = desk.take(0)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("infra.weights.local.shadow.shutil.copyfile", full)
        with pytest.raises(CacheFailed, match="No space left") as caught:
            desk.local.prepare(desk.store.manifests[1])
    assert "three copies" in caught.value.hint
    desk.check(held)
    assert desk.folders() == ["v00000000"]
    desk.take(2)


def test_a_full_disk_for_the_first_version(desk, monkeypatch):
    desk.store.chain(0)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.write_bytes", full)
        with pytest.raises(CacheFailed, match="No space left"):
            desk.local.prepare(desk.store.manifests[0])
    desk.take(0)


def test_a_place_that_is_no_folder_is_named(tmp_path):
    store = ChainStore(tmp_path / "store")
    published = store.chain(0)
    (tmp_path / "file").write_text("")
    local = LocalWeights(
        store,
        model_folder=model_folder(tmp_path / "model"),
        cache=str(tmp_path / "file" / "cache"),
    )
    with pytest.raises(CacheFailed, match="file/cache") as caught:
        local.prepare(published)
    assert "[weights] cache" in caught.value.hint
    local.close()


def test_closing_ends_what_is_being_prepared(desk):
    desk.store.chain(3)
    inside, go = threading.Event(), threading.Event()
    raised = []

    def pause(name):
        inside.set()
        go.wait(30)

    desk.store.on_fetch = pause

    def work():
        try:
            desk.local.prepare(desk.store.manifests[3])
        except CacheFailed as error:
            raised.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    assert inside.wait(30)
    closer = threading.Thread(target=desk.local.close)
    closer.start()
    go.set()
    for thread in (worker, closer):
        thread.join(30)
    assert "leaves" in str(raised[0])
    assert list(desk.place.iterdir()) == []


def test_files_taken_over_where_links_are_not_possible(desk, monkeypatch):
    desk.store.chain(1)
    desk.take(0)

    def no_links(*_):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr("infra.weights.local.shadow.os.link", no_links)
    desk.take(1)


def test_shared_memory_is_taken_if_it_has_room_for_three(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_module, "SHARED_MEMORY", tmp_path)
    free = shutil.disk_usage(tmp_path).free
    assert cache_module.place_for(1000) == tmp_path
    assert cache_module.place_for(free) != tmp_path
    monkeypatch.setattr(cache_module, "SHARED_MEMORY", tmp_path / "missing")
    assert cache_module.place_for(0).is_dir()
    assert cache_module.place_for(0, str(tmp_path / "mine")) == tmp_path / "mine"
