"""Safetensors files, read without trust and written durably."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from infra.runs import durable
from infra.weights.errors import WeightsCorrupt
from infra.weights.file_layout import new_file, read_layout


def write(path: Path, tensors: Mapping[str, torch.Tensor]) -> tuple[int, str]:
    """Write one file and wait until the disk has it.

    Args:
        path: Must not exist.
        tensors: As for `chunks`.

    Returns:
        Size in bytes and SHA-256.

    Raises:
        OSError: The disk did not take it.
    """
    return durable.write(path, chunks(tensors))


def chunks(tensors: Mapping[str, torch.Tensor]) -> Iterator[bytes | memoryview]:
    """The bytes of a file: its header, then a piece per tensor; nothing is copied.

    Args:
        tensors: On the CPU, contiguous.
    """
    kinds = {
        name: (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        for name, tensor in tensors.items()
    }
    head, spans = new_file(kinds)
    yield head
    for name in spans:
        yield tensors[name].detach().reshape(-1).view(torch.uint8).numpy().data


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
