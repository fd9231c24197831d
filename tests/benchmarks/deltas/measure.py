"""One update, as delta: its size, that it leads where it should, and CPU seconds."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import xxhash

from infra.weights.delta.decode import parse_delta
from infra.weights.delta.encode import Mode, encode_delta
from infra.weights.delta.sparse import Bits
from infra.weights.fingerprint import entry, of_entries
from tests.benchmarks.deltas.masters import Tensors


@dataclass(frozen=True, slots=True)
class Size:
    """Of one update, in shares of all elements and of the bytes of the full bfloat16 weights."""

    changed: float
    step: float


@dataclass(frozen=True, slots=True)
class Speed:
    """Full bfloat16 weights per CPU second, all threads together, in GB/s; and the size."""

    encode: float
    """Compare, code, compress, and digest."""
    apply: float
    """Parse, decompress, scatter."""
    digest: float
    """XXH3-128 of the new state."""
    size: float
    """Share of the bytes of the full weights."""


def size(before: Tensors, after: Tensors) -> Size:
    """Encode, and apply to `before` itself: after this it holds what `after` does.

    Raises:
        AssertionError: The two differ, by digests and fingerprint.
    """
    encoded = encode_delta(before, after, mode="step")
    total = sum(tensor.numel() for tensor in after.values())
    changed = sum(
        torch.count_nonzero(before[name].view(torch.int16) != after[name].view(torch.int16)).item()
        for name in after
    )
    delta = parse_delta(b"".join(encoded.body))
    for name in delta.changed:
        delta.apply(name, _bits(before[name]))
    entries = {
        name: entry("bfloat16", tensor.shape, xxhash.xxh3_128_hexdigest(_bits(tensor).data))
        for name, tensor in before.items()
    }
    assert entries == delta.entries
    assert of_entries(entries) == encoded.fingerprint
    return Size(changed / total, encoded.size_bytes / encoded.full_bytes)


def speed(before: Tensors, after: Tensors, mode: Mode) -> Speed:
    """Best of three."""
    encoded = encode_delta(before, after, mode=mode)
    data = b"".join(encoded.body)
    states = [{name: _bits(tensor.clone()) for name, tensor in before.items()} for _ in range(3)]

    def apply() -> None:
        state = states.pop()
        delta = parse_delta(data)
        for name in delta.changed:
            delta.apply(name, state[name])

    def digest() -> None:
        for tensor in after.values():
            xxhash.xxh3_128_hexdigest(_bits(tensor).data)

    def rate(call: Callable[[], object]) -> float:
        times = []
        for _ in range(3):
            started = time.process_time()
            call()
            times.append(time.process_time() - started)
        return encoded.full_bytes / min(times) / 1e9

    return Speed(
        encode=rate(lambda: encode_delta(before, after, mode=mode)),
        apply=rate(apply),
        digest=rate(digest),
        size=encoded.size_bytes / encoded.full_bytes,
    )


def _bits(tensor: torch.Tensor) -> Bits:
    return tensor.reshape(-1).view(torch.uint16).numpy()
