"""A delta, and how it is applied. Nothing in it is believed: it may have come over any network."""

from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import zstandard

from infra.weights.delta.header import Header, Piece, TensorHeader, unpack
from infra.weights.delta.layout import chunks_of
from infra.weights.delta.sparse import Bits, Bytes, Malformed, positions_of, unzigzag, values_of
from infra.weights.errors import WeightsCorrupt
from infra.weights.file_layout import ITEM_BYTES

_CHUNKS_KEPT = 8
"""Unpacked ones: small tensors that follow each other share a chunk."""


class _Part(NamedTuple):
    """The part of a tensor that lies in one chunk."""

    start: int
    stop: int
    width: int
    piece: Piece


class _Streams(NamedTuple):
    """Of one part."""

    gaps: Bytes
    planes: list[Bytes]


class Delta:
    """What leads from one version to the next; made by `parse_delta`. May be used by threads."""

    def __init__(self, header: Header, body: memoryview) -> None:
        self.tensors: Mapping[str, TensorHeader] = {each.name: each for each in header.tensors}
        """Dtype, shape and digest of the new bytes, by name."""
        self.entries = {name: tensor.entry for name, tensor in self.tensors.items()}
        """Fingerprint entries of the new state, by name; of all tensors."""
        self.changed = frozenset(name for name, each in self.tensors.items() if each.is_changed)
        """Tensors that `apply` does something to."""
        self._chunks: list[list[_Part]] = []
        self._places: dict[str, list[tuple[int, int]]] = {name: [] for name in self.tensors}
        self._lay_out(header)
        ends = np.cumsum([0, *header.stored]).tolist()
        self._stored = [body[begin:end] for begin, end in pairwise(ends)]
        self._check_stored()
        self._streams = lru_cache(_CHUNKS_KEPT)(self._unpack)

    def apply(self, name: str, state: np.ndarray[Any, Any]) -> None:
        """Change one tensor in place; the caller compares its digest with `entries` afterwards.

        Args:
            name: Of the tensor.
            state: Its elements as unsigned integers of their width, one-dimensional and writable:
                those of the base or, for an `absolute` delta, any mixture of base and new.

        Raises:
            WeightsCorrupt: The delta is damaged; `state` may have been changed in part.
            ValueError: `state` has another width or size; nothing was changed.
        """
        tensor = self.tensors[name]
        width, size = ITEM_BYTES[tensor.dtype], tensor.num_elements
        if state.dtype != np.dtype(f"<u{width}") or state.shape != (size,):
            raise ValueError(f"{name!r} needs {size} unsigned integers of {width} bytes")
        for chunk, place in self._places[name]:
            part = self._chunks[chunk][place]
            if part.piece[0] == "same":
                continue
            try:
                _apply(state[part.start : part.stop], part, self._streams(chunk)[place])
            except (Malformed, zstandard.ZstdError) as error:
                raise WeightsCorrupt(f"the delta of {name!r} is damaged: {error}") from error

    def _lay_out(self, header: Header) -> None:
        pieces = {name: iter(tensor.pieces) for name, tensor in self.tensors.items()}
        for chunk, spans in enumerate(chunks_of([each.num_elements for each in header.tensors])):
            self._chunks.append([])
            for place, span in enumerate(spans):
                tensor = header.tensors[span.tensor]
                piece = next(pieces[tensor.name])
                part = _Part(span.start, span.stop, ITEM_BYTES[tensor.dtype], piece)
                if not _is_possible(piece, span.stop - span.start):
                    raise WeightsCorrupt(f"{tensor.name!r} has an impossible piece: {piece}")
                self._chunks[-1].append(part)
                self._places[tensor.name].append((chunk, place))

    def _check_stored(self) -> None:
        for chunk, (parts, stored) in enumerate(zip(self._chunks, self._stored, strict=True)):
            if bool(stored) != any(part.piece[0] != "same" for part in parts):
                raise WeightsCorrupt(
                    f"chunk {chunk} has {len(stored)} bytes for {len(parts)} pieces"
                )

    def _unpack(self, chunk: int) -> list[_Streams]:
        """Unpack one chunk; takes no more memory than its shapes and counts allow."""
        parts, stored = self._chunks[chunk], self._stored[chunk]
        size = sum(
            gaps + changed * part.width for part in parts for _, changed, gaps in [part.piece]
        )
        told = zstandard.frame_content_size(stored)
        if told != size:
            raise Malformed(f"a chunk has {told} bytes, not {size}")
        data = zstandard.ZstdDecompressor().decompress(stored, allow_extra_data=False)
        rest = np.frombuffer(data, np.uint8)

        def take(count: int) -> Bytes:
            nonlocal rest
            taken, rest = rest[:count], rest[count:]
            return taken

        streams = [_Streams(take(part.piece[2]), []) for part in parts]
        for plane in range(max(part.width for part in parts)):
            for part, stream in zip(parts, streams, strict=True):
                if plane < part.width:
                    stream.planes.append(take(part.piece[1]))
        return streams


def parse_delta(data: bytes | bytearray | memoryview) -> Delta:
    """Read the header of a delta; chunks are read as they are applied.

    Args:
        data: All of it, for as long as the result is used; a mapped file will do.

    Raises:
        WeightsCorrupt: It is no delta, cut short, or says what cannot be.
    """
    view = memoryview(data).cast("B")
    header, begin = unpack(view)
    return Delta(header, view[begin:])


def _is_possible(piece: Piece, length: int) -> bool:
    kind, changed, gap_bytes = piece
    match kind:
        case "same":
            return changed == gap_bytes == 0
        case "raw":
            return changed == length and gap_bytes == 0
        case _:
            return 0 < changed <= length and changed <= gap_bytes <= changed + length // 255


def _apply(state: Bits, part: _Part, streams: _Streams) -> None:
    kind, changed, _ = part.piece
    values = values_of(streams.planes)
    if kind == "raw":
        state[:] = values
        return
    positions = positions_of(streams.gaps, changed, state.size)
    if kind == "step":
        state[positions] += unzigzag(values)
    else:
        state[positions] = values
