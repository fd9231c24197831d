"""Per-token arrays on the wire: strict base64 of little-endian int32/float32, and run lengths."""

import binascii
from collections.abc import Iterable
from itertools import groupby
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PlainSerializer, PlainValidator

Int32s = NDArray[np.int32]
Float32s = NDArray[np.float32]


def _decode(value: object, dtype: str) -> NDArray[Any]:
    if isinstance(value, str):
        try:
            raw = binascii.a2b_base64(value.encode("ascii"), strict_mode=True)
        except (binascii.Error, UnicodeEncodeError) as error:
            raise ValueError(f"not strict base64: {error}") from error
        if len(raw) % 4:
            raise ValueError(f"{len(raw)} bytes are not a whole number of 4-byte elements")
        return np.frombuffer(raw, dtype=dtype)
    if not isinstance(value, np.ndarray | list | tuple):
        raise ValueError(f"expected base64 text or an array, got {type(value).__name__}")
    array = np.array(value, dtype=dtype)
    if array.ndim != 1:
        raise ValueError(f"expected one dimension, got {array.ndim}")
    array.setflags(write=False)
    return array


def _decode_ints(value: object) -> Int32s:
    return _decode(value, "<i4")


def _decode_floats(value: object) -> Float32s:
    array = _decode(value, "<f4")
    if np.count_nonzero(np.isfinite(array)) < len(array):
        raise ValueError("contains a non-finite number")
    return array


def _encode(array: NDArray[Any]) -> str:
    return binascii.b2a_base64(np.ascontiguousarray(array).data, newline=False).decode("ascii")


IntArray = Annotated[
    Int32s, PlainValidator(_decode_ints), PlainSerializer(_encode, return_type=str)
]
"""`int32[T]`, read-only on access."""

FloatArray = Annotated[
    Float32s, PlainValidator(_decode_floats), PlainSerializer(_encode, return_type=str)
]
"""`float32[T]`, finite, read-only on access."""

Run = tuple[int, Annotated[int, Field(gt=0)]]
"""`(value, how many times in a row)`."""

Runs = tuple[Run, ...]


def to_runs(values: Iterable[int]) -> Runs:
    """Run-length code an integer sequence: `[0, 0, 1]` gives `((0, 2), (1, 1))`."""
    if not isinstance(values, np.ndarray):
        return tuple((int(value), len(list(run))) for value, run in groupby(values))
    array = np.asarray(values, dtype=np.int64)
    if array.size == 0:
        return ()
    edges = np.flatnonzero(np.diff(array)) + 1
    starts = np.concatenate(([0], edges))
    lengths = np.diff(np.concatenate((starts, [array.size])))
    return tuple(zip(array[starts].tolist(), lengths.tolist(), strict=True))


def from_runs(runs: Runs) -> Int32s:
    """Expand run lengths to `int32[T]`, read-only."""
    if not runs:
        array = np.zeros(0, dtype=np.int32)
    else:
        values, lengths = zip(*runs, strict=True)
        array = np.repeat(np.asarray(values, dtype=np.int32), lengths)
    array.setflags(write=False)
    return array
