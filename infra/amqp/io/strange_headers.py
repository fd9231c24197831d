"""Header values that pika cannot decode: they would end the connection on which they come, and
again on the next one, for the broker gives the message out again."""

import math
import struct
from collections.abc import Callable
from typing import Any

from pika import data

_decode_value: Callable[[bytes, int], tuple[Any, int]] = data.decode_value
_FLOATS = {b"f": ">f", b"d": ">d"}
_MAX_DEPTH = 16
"""Of tables and arrays within a table. Python's own limit on recursion lies above it."""


def decode_value(encoded: bytes, offset: int, depth: int = 0) -> tuple[Any, int]:
    """One value of an AMQP table and the offset behind it; None for a number or a time that means
    nothing, and for what is nested deeper than anybody means it.

    Args:
        depth: In how many tables and arrays of the outermost table it lies.
    """
    kind, start = encoded[offset : offset + 1], offset + 1
    if kind == b"T":
        try:
            return _decode_value(encoded, offset)
        except (OverflowError, ValueError, OSError):
            return None, start + 8
    if kind in _FLOATS:
        (value,) = struct.unpack_from(_FLOATS[kind], encoded, start)
        return value if math.isfinite(value) else None, start + struct.calcsize(_FLOATS[kind])
    if kind in (b"F", b"A"):
        return _decode_nested(encoded, start, depth, named=kind == b"F")
    return _decode_value(encoded, offset)


def _decode_nested(encoded: bytes, start: int, depth: int, *, named: bool) -> tuple[Any, int]:
    (size,) = struct.unpack_from(">I", encoded, start)
    offset, end = start + 4, start + 4 + size
    if depth >= _MAX_DEPTH:
        return None, end
    table: dict[Any, Any] = {}
    array: list[Any] = []
    while offset < end:
        if named:
            key, offset = data.decode_short_string(encoded, offset)
            table[key], offset = decode_value(encoded, offset, depth + 1)
        else:
            value, offset = decode_value(encoded, offset, depth + 1)
            array.append(value)
    return table if named else array, offset


def tolerate() -> None:
    """Make pika decode tables by `decode_value`, in this process, from now on."""
    data.decode_value = decode_value
