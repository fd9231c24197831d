"""The header of a delta: what is in it, told before any of it is believed."""

import math
from itertools import pairwise
from typing import Annotated, Literal

import xxhash
import zstandard
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from infra.weights.delta.layout import num_chunks, num_pieces
from infra.weights.errors import WeightsCorrupt
from infra.weights.file_layout import ITEM_BYTES
from infra.weights.fingerprint import entry

MAGIC = b"WRNDLTA1"
_PREAMBLE_BYTES = len(MAGIC) + 16 + 4
_MAX_HEADER_BYTES = 64 << 20
_MAX_DIMENSION = 1 << 40

Kind = Literal["same", "step", "absolute", "raw"]
Count = Annotated[int, Field(ge=0, le=_MAX_DIMENSION)]
Piece = tuple[Kind, Count, Count]
"""Kind, changed elements, gap bytes."""


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class TensorHeader(_Strict):
    """One tensor."""

    name: str = Field(pattern=r"^[^\x00-\x1f\x7f]{1,500}$")
    dtype: str
    shape: Annotated[tuple[Count, ...], Field(max_length=16)]
    digest: str = Field(pattern=r"^[0-9a-f]{32}$")
    """XXH3-128 of the new bytes."""
    pieces: tuple[Piece, ...]
    """One for each chunk that the tensor lies in, in order."""

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def is_changed(self) -> bool:
        return any(kind != "same" for kind, _, _ in self.pieces)

    @property
    def entry(self) -> str:
        """As the fingerprint takes it."""
        return entry(self.dtype, self.shape, self.digest)


class Header(_Strict):
    """Everything but the chunks."""

    tensors: tuple[TensorHeader, ...]
    """In strictly rising order of names."""
    stored: tuple[Count, ...]
    """Bytes of each chunk in the body; 0 where all its pieces are the same as before."""


def pack(header: Header) -> bytes:
    """Preamble and header."""
    coded = zstandard.ZstdCompressor(level=3).compress(header.model_dump_json().encode())
    told = len(coded).to_bytes(4, "little") + coded
    return MAGIC + xxhash.xxh3_128_digest(told) + told


def unpack(data: memoryview) -> tuple[Header, int]:
    """Read preamble and header, and hold them against each other and the size of the body.

    Returns:
        The header, and where the chunks begin.

    Raises:
        WeightsCorrupt: Anything that `pack` would not have written.
    """
    if len(data) < _PREAMBLE_BYTES or data[: len(MAGIC)] != MAGIC:
        raise WeightsCorrupt("this is no delta, or one of another format")
    begin = _PREAMBLE_BYTES + int.from_bytes(data[_PREAMBLE_BYTES - 4 : _PREAMBLE_BYTES], "little")
    if begin > len(data):
        raise WeightsCorrupt(f"the delta ends within its header, at byte {len(data)}")
    digest = data[len(MAGIC) : _PREAMBLE_BYTES - 4]
    if xxhash.xxh3_128_digest(data[_PREAMBLE_BYTES - 4 : begin]) != digest:
        raise WeightsCorrupt("the delta's header is damaged")
    header = _parse(data[_PREAMBLE_BYTES:begin])
    _check(header, len(data) - begin)
    return header, begin


def _parse(coded: memoryview) -> Header:
    try:
        size = zstandard.frame_content_size(coded)
        if not 0 <= size <= _MAX_HEADER_BYTES:
            raise WeightsCorrupt(f"the delta announces a header of {size} bytes")
        text = zstandard.ZstdDecompressor().decompress(coded, allow_extra_data=False)
        return Header.model_validate_json(text)
    except zstandard.ZstdError as error:
        raise WeightsCorrupt(f"the delta's header cannot be unpacked: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise WeightsCorrupt(f"the delta's header is malformed: {place}: {first['msg']}") from error


def _check(header: Header, body_bytes: int) -> None:
    names = [tensor.name for tensor in header.tensors]
    if any(former >= later for former, later in pairwise(names)):
        raise WeightsCorrupt("the delta's tensors are not in order of their names")
    begin = 0
    for tensor in header.tensors:
        if tensor.dtype not in ITEM_BYTES:
            raise WeightsCorrupt(f"{tensor.name} has unknown dtype {tensor.dtype!r}")
        end = begin + tensor.num_elements
        expected = num_pieces(begin, end)
        if len(tensor.pieces) != expected:
            raise WeightsCorrupt(
                f"{tensor.name} has {len(tensor.pieces)} pieces, its shape has {expected}"
            )
        begin = end
    if len(header.stored) != num_chunks(begin):
        raise WeightsCorrupt(f"{begin} elements are not in {len(header.stored)} chunks")
    if sum(header.stored) != body_bytes:
        raise WeightsCorrupt(f"the delta has {body_bytes} bytes, not {sum(header.stored)}")
