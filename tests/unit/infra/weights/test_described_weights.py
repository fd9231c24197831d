"""Weights that are verified without being loaded: the same verdict as loading them."""

import pytest
import torch

from infra.weights import described, reader
from infra.weights.errors import WeightsCorrupt
from infra.weights.fingerprint import fingerprint
from infra.weights.store import WeightStore


def published(tmp_path, dtype="float32"):
    torch.manual_seed(0)
    tensors = {
        "model.embed_tokens.weight": torch.randn(7, 5),
        "lm_head.weight": torch.randn(7, 5),
        "model.norm.weight": torch.randn(5),
        "scale": torch.tensor(3.0),
    }
    store = WeightStore.at(tmp_path / "store")
    manifest = store.publish(tensors, version=4, run_id="r", incarnation=1, step=4, dtype=dtype)
    return tmp_path / "store", manifest


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_fingerprint_is_that_of_the_tensors(tmp_path, dtype):
    folder, manifest = published(tmp_path, dtype)
    loaded = reader.prepare(folder, manifest, tmp_path)
    found = described.prepare(folder, manifest, tmp_path)
    assert found.fingerprint == loaded.fingerprint == fingerprint(loaded.tensors)
    assert (found.version, found.files) == (loaded.version, loaded.files)
    assert found.tensors.keys() == loaded.tensors.keys()
    kind = "bfloat16" if dtype == "bfloat16" else "float32"
    assert found.tensors["model.norm.weight"].entry.startswith(f"{kind} 5 ")
    assert found.tensors["lm_head.weight"].entry.startswith(f"{kind} 7x5 ")


def test_a_flipped_bit_a_lost_end_and_a_lost_file_are_found(tmp_path):
    folder, manifest = published(tmp_path)
    path = folder / manifest.folder / manifest.full[0].name
    whole = path.read_bytes()
    for damaged, complaint in (
        (whole[:-1] + bytes([whole[-1] ^ 1]), "sha256"),
        (whole[:-1], "were written"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(WeightsCorrupt, match=complaint):
            described.prepare(folder, manifest, tmp_path)
    path.unlink()
    with pytest.raises(WeightsCorrupt, match="cannot be read"):
        described.prepare(folder, manifest, tmp_path)


def test_a_manifest_of_other_tensors_is_found(tmp_path):
    folder, manifest = published(tmp_path)
    other = manifest.model_copy(update={"fingerprint": "0" * 64})
    with pytest.raises(WeightsCorrupt, match="fingerprint"):
        described.prepare(folder, other, tmp_path)
