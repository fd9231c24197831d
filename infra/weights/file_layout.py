"""The layout of safetensors files: what lies where, without torch and without trust.

8 bytes little-endian header length, a JSON header that maps names to dtype, shape and data
offsets, then the data without a hole.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from infra.weights.errors import WeightsCorrupt

_CODES = {
    "F64": ("float64", 8),
    "F32": ("float32", 4),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "I64": ("int64", 8),
    "I32": ("int32", 4),
    "I16": ("int16", 2),
    "I8": ("int8", 1),
    "U64": ("uint64", 8),
    "U32": ("uint32", 4),
    "U16": ("uint16", 2),
    "U8": ("uint8", 1),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1),
    "BOOL": ("bool", 1),
}
_CODE_OF = {dtype: code for code, (dtype, _) in _CODES.items()}
ITEM_BYTES = dict(_CODES.values())
"""Dtype, as torch names it without its module -> bytes of one element."""

_LENGTH_BYTES = 8
_ALIGNMENT = 64
_MAX_HEADER_BYTES = 100_000_000
_MAX_DIMENSION = 1 << 40
_NAME = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,500}")
"""Of a tensor: what stands in a line of the fingerprint's text, and in UTF-8."""


@dataclass(frozen=True, slots=True)
class Span:
    """Where a tensor lies in its file."""

    dtype: str
    """`bfloat16`, ..."""
    shape: tuple[int, ...]
    begin: int
    """First byte, from the beginning of the file."""
    end: int

    @property
    def num_bytes(self) -> int:
        """Of the tensor."""
        return self.end - self.begin


def read_layout(path: Path, read: Callable[[int, int], bytes], num_bytes: int) -> dict[str, Span]:
    """Read the header of a file.

    Args:
        path: For messages.
        read: Gives the bytes of the file from a first to before a last one.
        num_bytes: Of the whole file.

    Raises:
        WeightsCorrupt: Malformed: tensors overlap, leave a hole or reach beyond the end, say.
    """
    if num_bytes < _LENGTH_BYTES:
        raise WeightsCorrupt(f"{path} has {num_bytes} bytes, a header needs {_LENGTH_BYTES}")
    length = int.from_bytes(read(0, _LENGTH_BYTES), "little")
    if length > min(_MAX_HEADER_BYTES, num_bytes - _LENGTH_BYTES):
        raise WeightsCorrupt(f"{path} announces a header of {length} bytes in {num_bytes}")
    start = _LENGTH_BYTES + length
    try:
        header = json.loads(read(_LENGTH_BYTES, start))
    except (ValueError, RecursionError) as error:
        raise WeightsCorrupt(f"{path} has a header that is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise WeightsCorrupt(f"{path} has a header that is no JSON object")
    spans = {
        name: _span(path, name, entry, start, num_bytes)
        for name, entry in header.items()
        if name != "__metadata__"
    }
    position = start
    for span in sorted(spans.values(), key=lambda span: (span.begin, span.end)):
        if span.begin != position:
            hole = position - start
            raise WeightsCorrupt(f"{path}: tensors overlap or leave a hole at byte {hole}")
        position = span.end
    if position != num_bytes:
        raise WeightsCorrupt(f"{path}: {num_bytes - position} bytes belong to no tensor")
    return spans


def new_file(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> tuple[bytes, dict[str, Span]]:
    """Lay out a file.

    Args:
        tensors: Dtype and shape by name.

    Returns:
        The header, with which the file begins, and where each tensor lies: the widest dtypes
        first, so that every tensor is aligned.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    places: dict[str, tuple[int, int]] = {}
    for name in sorted(tensors, key=lambda name: (-ITEM_BYTES[tensors[name][0]], name)):
        dtype, shape = tensors[name]
        size = size_of(dtype, shape)
        places[name] = offset, offset + size
        header[name] = {
            "dtype": _CODE_OF[dtype],
            "shape": list(shape),
            "data_offsets": list(places[name]),
        }
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(_LENGTH_BYTES + len(text)) % _ALIGNMENT)
    head = len(text).to_bytes(_LENGTH_BYTES, "little") + text
    return head, {
        name: Span(*tensors[name], begin=len(head) + begin, end=len(head) + end)
        for name, (begin, end) in places.items()
    }


def size_of(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor."""
    return math.prod(shape) * ITEM_BYTES[dtype]


def _span(path: Path, name: str, entry: object, start: int, num_bytes: int) -> Span:
    if not _NAME.fullmatch(name):
        raise WeightsCorrupt(f"{path} names a tensor {name[:200]!a}")
    if not isinstance(entry, dict):
        raise WeightsCorrupt(f"{path}: {name!r} has no description")
    dtype, item_bytes = _CODES.get(str(entry.get("dtype")), ("", 0))
    shape, offsets = entry.get("shape"), entry.get("data_offsets")
    if not dtype or not _counts(shape) or not _counts(offsets) or len(offsets) != 2:
        raise WeightsCorrupt(f"{path}: {name!r} is described as {str(entry)[:200]}")
    begin, end = offsets
    available = num_bytes - start
    if max(shape, default=0) > _MAX_DIMENSION:
        raise WeightsCorrupt(f"{path}: {name!r} has shape {str(shape)[:200]}")
    if not begin <= end <= available or end - begin != math.prod(shape) * item_bytes:
        raise WeightsCorrupt(f"{path}: {name!r} lies at {begin}..{end} of {available} bytes")
    return Span(dtype, tuple(shape), start + begin, start + end)


def _counts(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
