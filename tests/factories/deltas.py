"""States of any bit patterns, and deltas between them, for tests of the codec."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
import xxhash
import zstandard

from infra.weights.delta.decode import Delta, parse_delta
from infra.weights.delta.header import MAGIC, unpack
from infra.weights.fingerprint import entry_of

Tensors = dict[str, torch.Tensor]
State = dict[str, np.ndarray]


def tensor_of(bits: np.ndarray, dtype: str, shape: Iterable[int]) -> torch.Tensor:
    """A tensor of these bytes."""
    shape = list(shape)
    if bits.size == 0:
        return torch.empty(shape, dtype=getattr(torch, dtype))
    whole = torch.from_numpy(np.ascontiguousarray(bits).view(np.uint8).copy())
    return whole.view(getattr(torch, dtype)).reshape(shape)


def state_of(tensors: Mapping[str, torch.Tensor]) -> State:
    """Flat writable copies as unsigned integers."""
    return {
        name: np.frombuffer(
            bytearray(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()),
            f"<u{tensor.element_size()}",
        )
        for name, tensor in tensors.items()
    }


def bf16(values: torch.Tensor, steps: int = 0) -> torch.Tensor:
    """As bfloat16, moved by some bit patterns."""
    return (values.bfloat16().view(torch.int16) + steps).view(torch.bfloat16)


def applied(data: bytes | Delta, base: Mapping[str, torch.Tensor] | State) -> State:
    """What a delta makes of its base; digests are not looked at."""
    delta = data if isinstance(data, Delta) else parse_delta(data)
    state = {
        name: each.copy() if isinstance(each, np.ndarray) else state_of({name: each})[name]
        for name, each in base.items()
    }
    for name in sorted(delta.changed):
        delta.apply(name, state[name])
    return state


def is_right(state: State, delta: Delta) -> bool:
    """Whether every digest is the one that the delta announces."""
    return state.keys() == delta.tensors.keys() and all(
        xxhash.xxh3_128_hexdigest(state[name].data) == tensor.digest
        for name, tensor in delta.tensors.items()
    )


def same_state(one: State, other: State) -> bool:
    """Bit for bit."""
    return one.keys() == other.keys() and all(np.array_equal(one[n], other[n]) for n in one)


def entries(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """As the fingerprint takes them."""
    return {name: entry_of(tensor) for name, tensor in tensors.items()}


def taken_apart(data: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """The header as plain JSON, and the chunks as they are stored."""
    header, begin = unpack(memoryview(data))
    chunks = []
    for size in header.stored:
        chunks.append(data[begin : begin + size])
        begin += size
    return json.loads(header.model_dump_json()), chunks


def put_together(told: object, chunks: Iterable[bytes], *, coded: bytes | None = None) -> bytes:
    """A delta whose checksum is right, whatever it says."""
    if coded is None:
        text = told if isinstance(told, bytes) else json.dumps(told).encode()
        coded = zstandard.ZstdCompressor().compress(text)
    rest = len(coded).to_bytes(4, "little") + coded
    return MAGIC + xxhash.xxh3_128_digest(rest) + rest + b"".join(chunks)


def frame(data: bytes) -> bytes:
    """One zstandard frame that tells its size."""
    return zstandard.ZstdCompressor(level=1).compress(data)
