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
    ],
)
def test_what_comes_behind_a_strange_value_is_read(
    kind: bytes, value: bytes, expected: object
) -> None:
    tune_pika()
    encoded = table(kind, value)
    assert data.decode_table(encoded, 0) == ({"a": expected, "z": 7}, len(encoded))
