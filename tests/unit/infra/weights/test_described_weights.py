"""Weights that are verified without being loaded: the same verdict as loading them."""

import shutil

import pytest

from infra.weights.described import DescribedWeights
from infra.weights.errors import WeightsCorrupt
from infra.weights.fingerprint import entry_of, fingerprint
from tests.factories.weight_chains import ChainStore, first_tensors, moved


@pytest.fixture(params=[False, True], ids=["in place", "copied"])
def store(tmp_path, request):
    return ChainStore(tmp_path / "store", copies=request.param)


def prepared(store, version):
    return DescribedWeights(store, model_folder=store.folder).prepare(store.manifests[version])


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_entries_and_fingerprint_are_those_of_the_tensors(store, version):
    store.chain(3, keyframes=(0, 2))
    found = prepared(store, version)
    true = store.versions[version]
    assert found.version == version
    assert found.fingerprint == fingerprint(true)
    assert {name: one.entry for name, one in found.tensors.items()} == {
        name: entry_of(tensor) for name, tensor in true.items()
    }
    assert found.files == ()


def test_the_newest_delta_is_enough(store):
    store.chain(3)
    shutil.rmtree(store.folder / "v0")
    prepared(store, 3)
    assert store.fetched == ["3/delta.bin"]


def test_full_files_with_checksums_of_something_else_are_found(store):
    store.chain(0)
    store.damage(0, "full")
    store.bless(0)
    with pytest.raises(WeightsCorrupt, match="fingerprint"):
        prepared(store, 0)


@pytest.mark.parametrize("kind", ["full", "delta"])
def test_a_flipped_bit_and_a_lost_file_are_found(store, kind):
    store.chain(1)
    version = 0 if kind == "full" else 1
    store.damage(version, kind)
    with pytest.raises(WeightsCorrupt, match="sha256"):
        prepared(store, version)
    shutil.rmtree(store.folder / f"v{version}")
    with pytest.raises(WeightsCorrupt, match="cannot be read"):
        prepared(store, version)


def test_a_damaged_delta_of_a_keyframe_gives_way_to_the_full_files(store, caplog):
    store.chain(1, keyframes=(0, 1))
    store.damage(1, "delta")
    assert prepared(store, 1).fingerprint == fingerprint(store.versions[1])
    assert "read in full" in caplog.text


def test_a_manifest_of_other_tensors_is_found(store):
    tensors = first_tensors()
    store.publish(0, tensors)
    store.publish(1, moved(tensors, 1), base=0)
    for version in (0, 1):
        other = store.manifests[version].model_copy(update={"fingerprint": "0" * 64})
        with pytest.raises(WeightsCorrupt, match="its manifest says 0000"):
            DescribedWeights(store, model_folder=store.folder).prepare(other)
