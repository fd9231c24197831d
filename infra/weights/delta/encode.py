"""Two versions to the delta between them."""

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import xxhash
import zstandard

from infra.weights.delta import header
from infra.weights.delta.layout import Span, chunks_of
from infra.weights.delta.sparse import Bits, Bytes, gaps_of, planes_of, zigzag
from infra.weights.file_layout import ITEM_BYTES
from infra.weights.fingerprint import of_entries

if TYPE_CHECKING:
    import torch

Mode = Literal["step", "absolute"]

_LEVEL = 1
_MAX_THREADS = 8
_DENSE = 0.25
"""Above this share of changed elements, sending all of them is tried, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedDelta:
    """A delta, and what is known of the state that it leads to."""

    body: list[bytes]
    """To be written one after the other."""
    size_bytes: int
    """Of the body."""
    full_bytes: int
    """Of all tensors, as they are."""
    entries: dict[str, str]
    """Fingerprint entries of the new state, by name; of all tensors."""
    changed: frozenset[str]
    """Tensors of which any element changed."""
    num_changed: int
    """Elements, of all tensors."""
    fingerprint: str
    """Of the new state."""


class _Coded(NamedTuple):
    piece: header.Piece
    num_changed: int
    gaps: Bytes
    planes: Bytes


class _Chunk(NamedTuple):
    pieces: list[header.Piece]
    num_changed: int
    stored: bytes


def encode_delta(
    base: "Mapping[str, torch.Tensor]", new: "Mapping[str, torch.Tensor]", *, mode: Mode
) -> EncodedDelta:
    """Code what changed from `base` to `new`.

    Args:
        base: By name, any device; must not change meanwhile.
        new: The same names, dtypes and shapes.
        mode: `step` codes differences: smaller, but only right on exactly this base. `absolute`
            codes new values: applied again, or to a state that already has some of them, it leads
            to the same.

    Raises:
        ValueError: The two are not alike, or of a dtype that is not known here.
    """
    names = sorted(new)
    _compare(base, new)
    before, after = ([_bits(side[name]) for name in names] for side in (base, new))

    def code(spans: list[Span]) -> _Chunk:
        return _chunk(
            [
                _piece(before[at][start:stop], after[at][start:stop], mode)
                for at, start, stop in spans
            ]
        )

    plan = chunks_of([bits.size for bits in after])
    with ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1)) as pool:
        digests = list(pool.map(_digest, after))
        coded = list(pool.map(code, plan))
    told = _header(names, new, digests, plan, coded)
    body = [header.pack(told), *(chunk.stored for chunk in coded if chunk.stored)]
    entries = {tensor.name: tensor.entry for tensor in told.tensors}
    return EncodedDelta(
        body=body,
        size_bytes=sum(map(len, body)),
        full_bytes=sum(bits.nbytes for bits in after),
        entries=entries,
        changed=frozenset(tensor.name for tensor in told.tensors if tensor.is_changed),
        num_changed=sum(chunk.num_changed for chunk in coded),
        fingerprint=of_entries(entries),
    )


def _header(
    names: list[str],
    new: "Mapping[str, torch.Tensor]",
    digests: list[str],
    plan: list[list[Span]],
    coded: list[_Chunk],
) -> header.Header:
    pieces: list[list[header.Piece]] = [[] for _ in names]
    for spans, chunk in zip(plan, coded, strict=True):
        for span, piece in zip(spans, chunk.pieces, strict=True):
            pieces[span.tensor].append(piece)
    tensors = (
        header.TensorHeader(
            name=name,
            dtype=_dtype(new[name]),
            shape=tuple(new[name].shape),
            digest=digest,
            pieces=tuple(of_tensor),
        )
        for name, digest, of_tensor in zip(names, digests, pieces, strict=True)
    )
    return header.Header(tensors=tuple(tensors), stored=tuple(len(chunk.stored) for chunk in coded))


def _compare(base: "Mapping[str, torch.Tensor]", new: "Mapping[str, torch.Tensor]") -> None:
    if odd := base.keys() ^ new.keys():
        raise ValueError(f"{min(odd)!r} is on one side only; publish in full")
    for name, tensor in new.items():
        before, after = (f"{side.dtype} {list(side.shape)}" for side in (base[name], tensor))
        if before != after:
            raise ValueError(f"{name!r} was {before} and is {after}; publish in full")
        if _dtype(tensor) not in ITEM_BYTES:
            raise ValueError(f"{name!r}: no delta is made of {tensor.dtype}; publish in full")


def _dtype(tensor: "torch.Tensor") -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _bits(tensor: "torch.Tensor") -> Bits:
    import torch

    unsigned = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    bits: Bits = flat.view(unsigned[tensor.element_size()]).numpy()
    return bits


def _digest(bits: Bits) -> str:
    return xxhash.xxh3_128_hexdigest(bits.data)


def _piece(before: Bits, after: Bits, mode: Mode) -> _Coded:
    """Code one piece, the smaller way where that is in doubt."""
    positions = np.flatnonzero(before != after)
    if not positions.size:
        return _Coded(("same", 0, 0), 0, np.empty(0, np.uint8), planes_of(after[:0]))
    gaps = gaps_of(positions)
    values = after[positions]
    if mode == "step":
        values = zigzag(values - before[positions])
    coded = _Coded((mode, positions.size, gaps.size), positions.size, gaps, planes_of(values))
    if positions.size <= _DENSE * after.size:
        return coded
    raw = _Coded(("raw", after.size, 0), positions.size, gaps[:0], planes_of(after))
    return min(coded, raw, key=lambda way: len(_packed([way])))


def _chunk(coded: list[_Coded]) -> _Chunk:
    pieces = [each.piece for each in coded]
    same = all(kind == "same" for kind, _, _ in pieces)
    num_changed = sum(each.num_changed for each in coded)
    return _Chunk(pieces, num_changed, b"" if same else _packed(coded))


def _packed(coded: list[_Coded]) -> bytes:
    """One frame; each stream begins a new block, and so has symbol statistics of its own."""
    size = sum(each.gaps.nbytes + each.planes.nbytes for each in coded)
    frame = zstandard.ZstdCompressor(level=_LEVEL).compressobj(size=size)
    parts = [frame.compress(each.gaps.data) for each in coded]
    parts.append(frame.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))
    for place in range(max(len(each.planes) for each in coded)):
        parts += [
            frame.compress(each.planes[place].data) for each in coded if place < len(each.planes)
        ]
        parts.append(frame.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))
    parts.append(frame.flush())
    return b"".join(parts)
