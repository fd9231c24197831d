"""Which elements of which tensors lie in which chunk."""

from collections.abc import Sequence
from typing import NamedTuple

CHUNK_ELEMENTS = 1 << 21
"""Part of the format. Longer ones compress hardly better, and need more memory on their way: up to
some 40 bytes per changed element in each thread."""


class Span(NamedTuple):
    """The part of a tensor that lies in one chunk; flat element positions."""

    tensor: int
    start: int
    stop: int


def chunks_of(num_elements: Sequence[int]) -> list[list[Span]]:
    """Cut the concatenation of all tensors into chunks of `CHUNK_ELEMENTS`; the last is shorter."""
    chunks: list[list[Span]] = []
    room = 0
    for tensor, total in enumerate(num_elements):
        start = 0
        while start < total:
            if room == 0:
                chunks.append([])
                room = CHUNK_ELEMENTS
            stop = min(total, start + room)
            chunks[-1].append(Span(tensor, start, stop))
            room -= stop - start
            start = stop
    return chunks


def num_chunks(total_elements: int) -> int:
    """How many chunks there are, without laying them out."""
    return -(-total_elements // CHUNK_ELEMENTS)


def num_pieces(begin: int, end: int) -> int:
    """In how many chunks a tensor lies, by its place in the concatenation."""
    return num_chunks(end) - begin // CHUNK_ELEMENTS if end > begin else 0
