"""Frames between the role and its scoring processes: a length, then JSON. Nothing is pickled."""

import asyncio
import struct
from typing import Protocol

_LENGTH = struct.Struct("<I")


class Reads(Protocol):
    """A blocking stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """As many bytes, or fewer at the end."""


def frame(body: bytes) -> bytes:
    """A body with its length in front."""
    return _LENGTH.pack(len(body)) + body


def read_frame(stream: Reads) -> bytes | None:
    """The next body, or None at the end of the stream."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    body = stream.read(length)
    return body if len(body) == length else None


async def receive_frame(reader: asyncio.StreamReader) -> bytes:
    """The next body.

    Raises:
        asyncio.IncompleteReadError: The other side is gone.
        ConnectionError: The same.
    """
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    return await reader.readexactly(length)
