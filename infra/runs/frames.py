"""How journal records lie in a file: framed, so that a torn tail or a flipped byte is recognised.

    magic "WJ1\\n" | header length u32 | body length u32 | crc32 u32 | header (JSON) | body

Integers are little-endian; the crc covers both lengths, the header and the body.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

MAGIC = b"WJ1\n"
_LENGTHS = struct.Struct("<II")
_CRC = struct.Struct("<I")
PREFIX_BYTES = len(MAGIC) + _LENGTHS.size + _CRC.size


@dataclass(frozen=True, slots=True)
class Frame:
    """One record in a file, at bytes `[offset, end)`."""

    offset: int
    end: int
    header: bytes
    body: bytes


class DamagedFrame(Exception):
    """Bytes that are no frame.

    Attributes:
        offset: Where the frame should begin.
        torn: No valid frame follows: what a crash while writing leaves.
    """

    def __init__(self, offset: int, reason: str, *, torn: bool) -> None:
        super().__init__(reason)
        self.offset = offset
        self.torn = torn


def encode_frame(header: bytes, body: bytes = b"") -> bytes:
    """The bytes of one record."""
    lengths = _LENGTHS.pack(len(header), len(body))
    crc = zlib.crc32(body, zlib.crc32(header, zlib.crc32(lengths)))
    return b"".join((MAGIC, lengths, _CRC.pack(crc), header, body))


def frame_bytes(prefix: bytes) -> int:
    """Size of the frame that begins with these `PREFIX_BYTES`."""
    num_header, num_body = _LENGTHS.unpack(prefix[len(MAGIC) : len(MAGIC) + _LENGTHS.size])
    return PREFIX_BYTES + int(num_header) + int(num_body)


def read_frame(data: bytes, offset: int) -> Frame | str:
    """The frame at `offset`, or why there is none."""
    start = offset + PREFIX_BYTES
    if start > len(data):
        return f"{len(data) - offset} bytes where a record should begin"
    if data[offset : offset + len(MAGIC)] != MAGIC:
        return "no record begins here"
    lengths = data[offset + len(MAGIC) : offset + len(MAGIC) + _LENGTHS.size]
    num_header, num_body = _LENGTHS.unpack(lengths)
    (crc,) = _CRC.unpack(data[start - _CRC.size : start])
    end = start + num_header + num_body
    if end > len(data):
        return f"a record of {end - offset} bytes has only {len(data) - offset}"
    header = bytes(data[start : start + num_header])
    body = bytes(data[start + num_header : end])
    if zlib.crc32(body, zlib.crc32(header, zlib.crc32(lengths))) != crc:
        return "the checksum differs"
    return Frame(offset, end, header, body)


def read_frames(data: bytes, offset: int = 0) -> Iterator[Frame]:
    """Frames from `offset` to the end of the data.

    Raises:
        DamagedFrame: Something else lies where a frame should begin.
    """
    while offset < len(data):
        frame = read_frame(data, offset)
        if isinstance(frame, str):
            raise DamagedFrame(offset, frame, torn=not _frame_follows(data, offset + 1))
        yield frame
        offset = frame.end


def _frame_follows(data: bytes, offset: int) -> bool:
    while (offset := data.find(MAGIC, offset)) >= 0:
        if isinstance(read_frame(data, offset), Frame):
            return True
        offset += 1
    return False
