"""Safetensors files, read without trust and written durably.

Layout: 8 bytes little-endian header length, a JSON header that maps names to dtype, shape and
data offsets, then the data.
"""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

import torch
from safetensors.torch import save_file

from infra.weights.errors import WeightsCorrupt

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_MAX_HEADER_BYTES = 100_000_000
_MAX_DIMENSION = 1 << 40


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
    return _parse(path, buffer)


def _parse(path: Path, buffer: torch.Tensor) -> dict[str, torch.Tensor]:
    header, data = _header(path, buffer)
    tensors: dict[str, torch.Tensor] = {}
    spans: list[tuple[int, int]] = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtype, shape, begin, end = _entry(path, name, entry, len(data))
        raw = data[begin:end]
        if raw.storage_offset() % dtype.itemsize:
            raw = raw.clone()
        tensors[name] = raw.view(dtype).reshape(shape)
        spans.append((begin, end))
    position = 0
    for begin, end in sorted(spans):
        if begin != position:
            raise WeightsCorrupt(f"{path}: tensors overlap or leave a hole at byte {position}")
        position = end
    if position != len(data):
        raise WeightsCorrupt(f"{path}: {len(data) - position} bytes belong to no tensor")
    return tensors


def _header(path: Path, buffer: torch.Tensor) -> tuple[dict[str, Any], torch.Tensor]:
    if len(buffer) < 8:
        raise WeightsCorrupt(f"{path} has {len(buffer)} bytes, a header needs 8")
    length = int.from_bytes(buffer[:8].numpy().tobytes(), "little")
    if length > min(_MAX_HEADER_BYTES, len(buffer) - 8):
        raise WeightsCorrupt(f"{path} announces a header of {length} bytes in {len(buffer)}")
    try:
        header = json.loads(buffer[8 : 8 + length].numpy().tobytes())
    except (ValueError, RecursionError) as error:
        raise WeightsCorrupt(f"{path} has a header that is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise WeightsCorrupt(f"{path} has a header that is no JSON object")
    return header, buffer[8 + length :]


def _entry(
    path: Path, name: str, entry: object, available: int
) -> tuple[torch.dtype, list[int], int, int]:
    if not isinstance(entry, dict):
        raise WeightsCorrupt(f"{path}: {name!r} has no description")
    dtype = _DTYPES.get(str(entry.get("dtype")))
    shape, offsets = entry.get("shape"), entry.get("data_offsets")
    if dtype is None or not _counts(shape) or not _counts(offsets) or len(offsets) != 2:
        raise WeightsCorrupt(f"{path}: {name!r} is described as {str(entry)[:200]}")
    begin, end = offsets
    if max(shape, default=0) > _MAX_DIMENSION:
        raise WeightsCorrupt(f"{path}: {name!r} has shape {str(shape)[:200]}")
    if not begin <= end <= available or end - begin != math.prod(shape) * dtype.itemsize:
        raise WeightsCorrupt(f"{path}: {name!r} lies at {begin}..{end} of {available} bytes")
    return dtype, shape, begin, end


def _counts(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
