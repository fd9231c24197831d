"""Safetensors files, read without trust and written durably."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from infra.weights.errors import WeightsCorrupt
from infra.weights.file_layout import read_layout


def write(path: Path, tensors: Mapping[str, torch.Tensor]) -> tuple[int, str]:
    """Write one file and wait until the disk has it.

    Args:
        path: Must not exist.
        tensors: On the CPU, contiguous, sharing no memory.

    Returns:
        Size in bytes and SHA-256.

    Raises:
        OSError: The disk did not take it.
    """
    save_file(dict(tensors), path, metadata={"format": "pt"})
    with path.open("rb") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256")
        return file.tell(), digest.hexdigest()


def read(
    path: Path, *, size_bytes: int | None = None, sha256: str | None = None
) -> dict[str, torch.Tensor]:
    """Read a file into memory; the tensors are views on one buffer.

    Args:
        path: The file.
        size_bytes: What its size must be; checked before memory is taken.
        sha256: What its checksum must be; checked before a byte is interpreted.

    Raises:
        WeightsCorrupt: It is missing, unreadable, not the one that was promised, or malformed.
    """
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno()).st_size
            if size_bytes is not None and found != size_bytes:
                raise WeightsCorrupt(f"{path} has {found} bytes, {size_bytes} were written")
            buffer = torch.empty(found, dtype=torch.uint8)
            view = buffer.numpy().data
            filled = 0
            while filled < found and (count := file.readinto(view[filled:])):
                filled += count
    except OSError as error:
        raise WeightsCorrupt(f"{path} cannot be read: {error.strerror or error}") from error
    except RuntimeError as error:
        raise WeightsCorrupt(f"{path} does not fit into memory: {found} bytes") from error
    if filled != found:
        raise WeightsCorrupt(f"{path} ended after {filled} of {found} bytes")
    if sha256 is not None and (digest := hashlib.sha256(view).hexdigest()) != sha256:
        raise WeightsCorrupt(f"{path} has sha256 {digest}, {sha256} was written")
    return _tensors(path, buffer)


def _tensors(path: Path, buffer: torch.Tensor) -> dict[str, torch.Tensor]:
    view = buffer.numpy().data
    spans = read_layout(path, lambda begin, end: bytes(view[begin:end]), len(view))
    tensors: dict[str, torch.Tensor] = {}
    for name, span in spans.items():
        dtype = getattr(torch, span.dtype)
        raw = buffer[span.begin : span.end]
        if raw.storage_offset() % dtype.itemsize:
            raw = raw.clone()
        tensors[name] = raw.view(dtype).reshape(span.shape)
    return tensors
