"""Deltas that nobody encoded: refused, with little memory, and without writing elsewhere."""

import copy
import json
import tracemalloc

import numpy as np
import pytest
import torch
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.weights.delta.decode import parse_delta
from infra.weights.delta.encode import encode_delta
from infra.weights.errors import WeightsCorrupt
from tests.factories.deltas import (
    applied,
    bf16,
    frame,
    is_right,
    put_together,
    same_state,
    state_of,
    taken_apart,
)

BASE = {
    "a": bf16(torch.arange(1, 401.0)),
    "b": torch.arange(30.0).reshape(5, 6),
    "c": torch.ones(()),
}
NEW = {name: tensor.clone() for name, tensor in BASE.items()}
NEW["a"][::40] = bf16(NEW["a"][::40], 1)
NEW["b"][2:4] += 1
GOOD = b"".join(encode_delta(BASE, NEW, mode="step").body)
TOLD, CHUNKS = taken_apart(GOOD)
STREAM = zstandard.ZstdDecompressor().decompress(CHUNKS[0])


def tensor(number, **changes):
    told = copy.deepcopy(TOLD)
    told["tensors"][number] |= changes
    return told


def test_taking_apart_and_putting_together_changes_nothing():
    assert same_state(applied(put_together(TOLD, CHUNKS), BASE), state_of(NEW))
    assert TOLD["tensors"][0]["pieces"] == [["step", 10, 10]]
    assert STREAM[:10] == bytes([0] + [39] * 9)


@pytest.mark.parametrize(
    "told",
    [
        b"",
        b"no JSON",
        b"[" * 100_000,
        [],
        {},
        {"tensors": [], "stored": [5]},
        TOLD | {"more": 1},
        tensor(0, more=1),
        TOLD | {"stored": []},
        TOLD | {"stored": [len(CHUNKS[0]) - 1]},
        TOLD | {"stored": [len(CHUNKS[0]), 0]},
        TOLD | {"stored": [str(len(CHUNKS[0]))]},
        TOLD | {"stored": [-1]},
        TOLD | {"tensors": TOLD["tensors"][::-1]},
        TOLD | {"tensors": TOLD["tensors"][:1] * 2 + TOLD["tensors"][1:]},
        TOLD | {"tensors": TOLD["tensors"][2:]},
        tensor(0, name="b"),
        tensor(0, name=""),
        tensor(0, name="a\nb"),
        tensor(0, name=7),
        tensor(0, dtype="complex64"),
        tensor(0, dtype="torch.bfloat16"),
        tensor(0, shape=400),
        tensor(0, shape=[-400]),
        tensor(0, shape=[400.0]),
        tensor(0, shape=[True]),
        tensor(0, shape=[1 << 41]),
        tensor(0, shape=[1 << 40] * 16),
        tensor(0, shape=[400] + [1] * 16),
        tensor(0, shape=[1 << 22]),
        tensor(0, shape=[0]),
        tensor(0, digest="0" * 31),
        tensor(0, digest="G" * 32),
        tensor(0, pieces=[]),
        tensor(0, pieces=[["step", 10, 10]] * 2),
        tensor(0, pieces=[["xor", 10, 10]]),
        tensor(0, pieces=[["step", 10]]),
        tensor(0, pieces=[["step", 0, 0]]),
        tensor(0, pieces=[["step", 401, 401]]),
        tensor(0, pieces=[["step", 10, 9]]),
        tensor(0, pieces=[["step", 10, 12]]),
        tensor(0, pieces=[["step", 10.5, 10]]),
        tensor(0, pieces=[["same", 1, 0]]),
        tensor(0, pieces=[["same", 0, 1]]),
        tensor(0, pieces=[["raw", 399, 0]]),
        tensor(0, pieces=[["raw", 400, 1]]),
        TOLD | {"tensors": [each | {"pieces": [["same", 0, 0]]} for each in TOLD["tensors"]]},
    ],
    ids=lambda told: str(told)[-60:],
)
def test_headers_that_cannot_be(told):
    with pytest.raises(WeightsCorrupt):
        parse_delta(put_together(told, CHUNKS))


@pytest.mark.parametrize(
    ("stream", "told"),
    [
        (STREAM + b"\0", TOLD),
        (STREAM[:-1], TOLD),
        (b"", TOLD),
        (STREAM, tensor(0, pieces=[["step", 9, 9]])),
        (STREAM, tensor(0, pieces=[["raw", 400, 0]])),
        (bytes([255]) + STREAM[1:], TOLD),
        (STREAM[:9] + bytes([255]) + STREAM[10:], TOLD),
        (STREAM[:9] + bytes([79]) + STREAM[10:], TOLD),
        (bytes([40] * 10) + STREAM[10:], TOLD),
        (STREAM[:9] + bytes([79, 0]) + STREAM[10:], tensor(0, pieces=[["step", 10, 11]])),
    ],
)
def test_streams_that_cannot_be(stream, told):
    chunk = frame(stream)
    delta = parse_delta(put_together(told | {"stored": [len(chunk)]}, [chunk]))
    state = state_of(BASE)
    with pytest.raises(WeightsCorrupt, match="'a'"):
        delta.apply("a", state["a"])
    assert same_state(state, state_of(BASE))


def test_the_last_position_that_is_possible_is_taken_and_the_next_is_not():
    last = STREAM[:9] + bytes([78]) + STREAM[10:]
    chunk = frame(last)
    delta = parse_delta(put_together(TOLD | {"stored": [len(chunk)]}, [chunk]))
    state = state_of(BASE)
    delta.apply("a", state["a"])
    assert state["a"][399] != state_of(BASE)["a"][399]


@pytest.mark.parametrize(
    "chunk",
    [
        b"no frame at all",
        CHUNKS[0][:-3],
        CHUNKS[0] + b"\0",
        CHUNKS[0] + frame(b""),
        frame(b"") + CHUNKS[0],
        zstandard.ZstdCompressor(write_content_size=False).compress(STREAM),
        b"\x50\x2a\x4d\x18\x04\0\0\0skip",
    ],
)
def test_frames_that_are_not_exactly_one(chunk):
    delta = parse_delta(put_together(TOLD | {"stored": [len(chunk)]}, [chunk]))
    with pytest.raises(WeightsCorrupt):
        delta.apply("a", state_of(BASE)["a"])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        GOOD[:7],
        GOOD[:27],
        GOOD[:28],
        GOOD[:60],
        GOOD[:-1],
        GOOD + b"\0",
        b"WRNDLTA2" + GOOD[8:],
        GOOD[:24] + b"\xff\xff\xff\xff" + GOOD[28:],
        GOOD[:8] + bytes(16) + GOOD[24:],
        put_together(None, CHUNKS, coded=b"no frame"),
        put_together(None, CHUNKS, coded=frame(json.dumps(TOLD).encode()) + b"\0"),
        put_together(None, CHUNKS, coded=b""),
    ],
)
def test_files_that_are_no_delta(data):
    with pytest.raises(WeightsCorrupt):
        parse_delta(data)


def claimed(size):
    """A frame that announces `size` bytes and holds five."""
    return zstandard.FRAME_HEADER + bytes([0xE0]) + size.to_bytes(8, "little") + b"\x29\0\0hello"


@pytest.mark.parametrize("size", [(64 << 20) + 1, 1 << 40, (1 << 64) - 3])
def test_a_header_that_would_fill_memory(size):
    bombs = [put_together(None, CHUNKS, coded=claimed(size))]
    if size < 1 << 30:
        bombs.append(put_together(b" " * size, CHUNKS))
    for bomb in bombs:
        assert len(bomb) < 10_000
        tracemalloc.start()
        try:
            with pytest.raises(WeightsCorrupt, match="announces"):
                parse_delta(bomb)
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("chunk", [frame(bytes(100 << 20)), claimed(1 << 40)], ids=len)
def test_a_chunk_that_would_fill_memory(chunk):
    delta = parse_delta(put_together(TOLD | {"stored": [len(chunk)]}, [chunk]))
    tracemalloc.start()
    try:
        with pytest.raises(WeightsCorrupt, match="bytes, not"):
            delta.apply("a", state_of(BASE)["a"])
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@settings(max_examples=1500, deadline=None)
@given(st.data())
def test_damage_is_noticed_or_does_none(data):
    """By the codec or, at the latest, by the digests; and nothing beside the state is written."""
    place = data.draw(st.integers(0, len(GOOD) - 1))
    match data.draw(st.sampled_from(["flip", "cut", "insert", "remove", "header"])):
        case "flip":
            wrong = GOOD[:place] + bytes([GOOD[place] ^ (1 << data.draw(st.integers(0, 7)))])
            wrong += GOOD[place + 1 :]
        case "cut":
            wrong = GOOD[:place]
        case "insert":
            wrong = GOOD[:place] + data.draw(st.binary(min_size=1, max_size=9)) + GOOD[place:]
        case "remove":
            wrong = GOOD[:place] + GOOD[place + data.draw(st.integers(1, 9)) :]
        case _:
            text = bytearray(json.dumps(TOLD).encode())
            text[place % len(text)] = data.draw(st.integers(0, 255))
            wrong = put_together(bytes(text), CHUNKS)
    memory = {name: np.full(bits.size + 64, 7, bits.dtype) for name, bits in state_of(BASE).items()}
    inside = {name: whole[32:-32] for name, whole in memory.items()}
    for name, bits in state_of(BASE).items():
        inside[name][:] = bits
    try:
        delta = parse_delta(wrong)
        for name in delta.changed & inside.keys():
            delta.apply(name, inside[name])
    except (WeightsCorrupt, ValueError):
        pass
    else:
        assert not is_right(inside, delta) or same_state(inside, state_of(NEW))
    for whole in memory.values():
        assert (whole[:32] == 7).all()
        assert (whole[-32:] == 7).all()
