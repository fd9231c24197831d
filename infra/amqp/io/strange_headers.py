"""Header values that pika cannot decode: they would end the connection on which they come, and
again on the next one, for the broker gives the message out again."""

import math
import struct
from collections.abc import Callable
from typing import Any

from pika import data

_decode_value: Callable[[bytes, int], tuple[Any, int]] = data.decode_value
_FLOATS = {b"f": ">f", b"d": ">d"}


def decode_value(encoded: bytes, offset: int) -> tuple[Any, int]:
    """One value of an AMQP table and the offset behind it; None for a number or a time that means
    nothing."""
    kind, start = encoded[offset : offset + 1], offset + 1
    if kind == b"T":
        try:
            return _decode_value(encoded, offset)
        except (OverflowError, ValueError, OSError):
            return None, start + 8
    if kind in _FLOATS:
        (value,) = struct.unpack_from(_FLOATS[kind], encoded, start)
        return value if math.isfinite(value) else None, start + struct.calcsize(_FLOATS[kind])
    return _decode_value(encoded, offset)


def tolerate() -> None:
    """Make pika decode tables by `decode_value`, in this process, from now on."""
    data.decode_value = decode_value
