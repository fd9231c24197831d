"""One number for a set of tensors, the same wherever and however they are filed."""

import hashlib
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import xxhash

from infra.weights.errors import WeightsCorrupt

if TYPE_CHECKING:
    import torch

TIED_HEAD = "lm_head.weight"
"""Left out where another tensor holds the same bytes: some files carry it, others tie it."""

_MAX_THREADS = 8
_SMALL_BYTES = 64 << 20


def fingerprint(tensors: "Mapping[str, torch.Tensor]") -> str:
    """SHA-256 over name, dtype, shape and XXH3-128 of the bytes of every tensor, in order of names.

    It tells whether two sets are the same, at the speed of memory; files from a store are proved by
    SHA-256 before.

    Args:
        tensors: By Hugging Face name, any device. A head tied to the embedding may be given or
            left out: the result is the same.

    Returns:
        64 hexadecimal digits.
    """
    return of_entries(entries_of(tensors))


def entries_of(tensors: "Mapping[str, torch.Tensor]") -> dict[str, str]:
    """The entry of each tensor by name; large sets are read by several threads."""
    names = sorted(tensors)
    if sum(tensor.nbytes for tensor in tensors.values()) < _SMALL_BYTES:
        return {name: entry_of(tensors[name]) for name in names}
    with ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1)) as pool:
        return dict(zip(names, pool.map(lambda name: entry_of(tensors[name]), names), strict=True))


def of_entries(entries: Mapping[str, str]) -> str:
    """The fingerprint of tensors that are described by their entries, by name."""
    entries = dict(entries)
    head = entries.pop(TIED_HEAD, None)
    if head is not None and head not in entries.values():
        entries[TIED_HEAD] = head
    total = hashlib.sha256()
    for name in sorted(entries):
        total.update(f"{name} {entries[name]}\n".encode())
    return total.hexdigest()


def check_fingerprint(version: int, *, measured: str, promised: str) -> None:
    """Hold what was read against the manifest; raises `WeightsCorrupt`."""
    if measured != promised:
        raise WeightsCorrupt(
            f"version {version} has fingerprint {measured}, its manifest says {promised}"
        )


def entry_of(tensor: "torch.Tensor") -> str:
    """Dtype, shape and XXH3-128 of the bytes: `float32 3x4 9f86d0...`."""
    return entry(str(tensor.dtype).removeprefix("torch."), tensor.shape, _digest(tensor))


def entry(dtype: str, shape: Iterable[int], digest: str) -> str:
    """An entry of its parts; a scalar has an empty shape."""
    return f"{dtype} {'x'.join(map(str, shape))} {digest}"


def _digest(tensor: "torch.Tensor") -> str:
    import torch

    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    return xxhash.xxh3_128_hexdigest(flat.view(torch.uint8).numpy().data)
