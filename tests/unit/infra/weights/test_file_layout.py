"""Files that are laid out here are read by safetensors itself, and by us."""

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from infra.weights.errors import WeightsCorrupt
from infra.weights.file_layout import ITEM_BYTES, new_file, read_layout

TENSORS = {
    "mask": torch.tensor([True, False, True]),
    "odd": torch.arange(5, dtype=torch.bfloat16),
    "wide": torch.arange(6, dtype=torch.float64).reshape(2, 3),
    "scalar": torch.tensor(3.5),
    "empty": torch.empty(0, 4, dtype=torch.int32),
}


def test_a_file_of_ours_is_one_of_safetensors(tmp_path):
    kinds = {
        name: (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        for name, tensor in TENSORS.items()
    }
    head, spans = new_file(kinds)
    data = bytearray(head) + bytearray(max(span.end for span in spans.values()) - len(head))
    for name, span in spans.items():
        raw = TENSORS[name].reshape(-1).view(torch.uint8).numpy()
        data[span.begin : span.end] = raw.tobytes()
        assert span.begin % ITEM_BYTES[span.dtype] == 0, "aligned"
    path = tmp_path / "ours.safetensors"
    path.write_bytes(data)
    loaded = safetensors.torch.load_file(path)
    assert loaded.keys() == TENSORS.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in TENSORS.items())
    assert read_layout(path, lambda begin, end: bytes(data[begin:end]), len(data)) == spans


@pytest.mark.parametrize("dtype", sorted(ITEM_BYTES))
def test_every_dtype_is_one_of_torch(dtype):
    assert torch.empty(0, dtype=getattr(torch, dtype)).itemsize == ITEM_BYTES[dtype]
    assert np.dtype(f"u{ITEM_BYTES[dtype]}").itemsize == ITEM_BYTES[dtype]


@pytest.mark.parametrize("name", ["", "a\nb", "a\0b", "\x7f", "\ud800", "n" * 501])
def test_a_name_that_no_fingerprint_could_tell_is_refused(name):
    """A line break in it would make two sets of tensors look the same; half a surrogate pair has
    no bytes to be hashed."""
    head = json.dumps({name: {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}).encode()
    data = len(head).to_bytes(8, "little") + head + b"1"
    with pytest.raises(WeightsCorrupt, match="names a tensor"):
        read_layout(Path("odd"), lambda begin, end: data[begin:end], len(data))
