"""Tables that pika alone would choke on, byte by byte as AMQP 0-9-1 section 4.2.5.5 has them."""

import struct

import pytest
from pika import data

from infra.amqp.io.io_thread import tune_pika


def table(kind: bytes, value: bytes) -> bytes:
    fields = b"\x01a" + kind + value + b"\x01zI\x00\x00\x00\x07"
    return struct.pack(">I", len(fields)) + fields


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (b"T", struct.pack(">Q", 2**63), None),
        (b"T", b"\xff" * 8, None),
        (b"d", struct.pack(">d", float("nan")), None),
        (b"d", struct.pack(">d", float("-inf")), None),
        (b"d", struct.pack(">d", 0.25), 0.25),
        (b"f", struct.pack(">f", float("nan")), None),
        (b"f", struct.pack(">f", 2.5), 2.5),
        (b"S", struct.pack(">I", 2) + b"ok", "ok"),
        (b"F", struct.pack(">I", 0), {}),
        (b"F", struct.pack(">I", 4) + b"\x01bt\x01", {"b": True}),
        (b"A", struct.pack(">I", 0), []),
        (b"A", struct.pack(">I", 4) + b"t\x01t\x00", [True, False]),
        (b"A", struct.pack(">I", 9) + b"d" + struct.pack(">d", float("inf")), [None]),
    ],
)
def test_what_comes_behind_a_strange_value_is_read(
    kind: bytes, value: bytes, expected: object
) -> None:
    tune_pika()
    encoded = table(kind, value)
    assert data.decode_table(encoded, 0) == ({"a": expected, "z": 7}, len(encoded))


@pytest.mark.parametrize(("kind", "key"), [(b"F", b"\x01n"), (b"A", b"")])
@pytest.mark.parametrize("depth", [1, 16, 17, 2000])
def test_nesting_is_read_to_a_depth_and_skipped_below(kind: bytes, key: bytes, depth: int) -> None:
    tune_pika()
    inner = b""
    for _ in range(depth - 1):
        inner = key + kind + struct.pack(">I", len(inner)) + inner
    encoded = table(kind, struct.pack(">I", len(inner)) + inner)
    decoded, offset = data.decode_table(encoded, 0)
    assert (offset, decoded["z"]) == (len(encoded), 7)
    levels, value = 0, decoded["a"]
    while isinstance(value, dict | list):
        levels += 1
        value = next(iter(value.values() if isinstance(value, dict) else value), "innermost")
    assert (levels, value) == ((depth, "innermost") if depth <= 16 else (16, None))
