"""One number for a set of tensors, the same wherever and however they are filed."""

import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import torch

TIED_HEAD = "lm_head.weight"
"""Left out where another tensor holds the same bytes: some files carry it, others tie it."""

_MAX_THREADS = 8
_SMALL_BYTES = 64 << 20


def fingerprint(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over name, dtype, shape and bytes of every tensor, in the order of names.

    Args:
        tensors: By Hugging Face name, any device. A head tied to the embedding may be given or
            left out: the result is the same.

    Returns:
        64 hexadecimal digits.
    """
    names = sorted(tensors)
    if sum(tensor.nbytes for tensor in tensors.values()) < _SMALL_BYTES:
        digests = [_digest(tensors[name]) for name in names]
    else:
        with ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1)) as pool:
            digests = list(pool.map(lambda name: _digest(tensors[name]), names))
    entries = {
        name: f"{str(tensors[name].dtype).removeprefix('torch.')} "
        f"{'x'.join(map(str, tensors[name].shape))} {digest}"
        for name, digest in zip(names, digests, strict=True)
    }
    head = entries.pop(TIED_HEAD, None)
    if head is not None and head not in entries.values():
        entries[TIED_HEAD] = head
    total = hashlib.sha256()
    for name in sorted(entries):
        total.update(f"{name} {entries[name]}\n".encode())
    return total.hexdigest()


def _digest(tensor: torch.Tensor) -> str:
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    return hashlib.sha256(flat.view(torch.uint8).numpy().data).hexdigest()
