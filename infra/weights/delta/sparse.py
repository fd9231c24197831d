"""Arrays to byte streams and back: positions as gaps, differences as zigzag, values as byte planes.

All arrays are one-dimensional; values are little-endian unsigned integers of 1, 2, 4 or 8 bytes.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.unsignedinteger[Any]]
"""Flat bit patterns."""
Bytes = NDArray[np.uint8]

_MORE = 255


class Malformed(ValueError):
    """A stream says what cannot be."""


def gaps_of(positions: NDArray[np.intp]) -> Bytes:
    """Code increasing positions, below 2^32, by the number of elements skipped before each.

    A gap is a byte below 255, after as many bytes of 255, each worth 255, as it takes. Where
    changes fall independently, gaps are geometric, and quotient and rest are independent, too:
    coding the bytes by their frequencies then costs what the positions are worth.
    """
    gaps = (np.diff(positions, prepend=-1) - 1).astype(np.uint32)
    if gaps.size == 0 or gaps.max() < _MORE:
        return gaps.astype(np.uint8)
    whole = gaps // _MORE
    ends = np.cumsum(whole + 1, dtype=np.intp) - 1
    stream = np.full(int(ends[-1]) + 1, _MORE, np.uint8)
    stream[ends] = gaps - whole * _MORE
    return stream


def positions_of(stream: Bytes, count: int, length: int) -> NDArray[np.intp]:
    """Undo `gaps_of`.

    Args:
        stream: Gap bytes.
        count: Positions there must be.
        length: They are below this.

    Returns:
        Strictly increasing positions.

    Raises:
        Malformed: Another count, a gap without its end, or a position out of range.
    """
    ends = stream != _MORE
    if stream.size == 0 or not ends[-1] or np.count_nonzero(ends) != count:
        raise Malformed(f"the gaps are not those of {count} elements")
    skipped = np.cumsum(stream, dtype=np.intp)
    if skipped[-1] + count > length:
        raise Malformed(f"position {skipped[-1] + count - 1} is beyond {length} elements")
    kept = skipped if count == stream.size else skipped[ends]
    return kept + np.arange(count)


def zigzag(steps: Bits) -> Bits:
    """Small steps in both directions become small numbers: 0, -1, 1, -2 ... to 0, 1, 2, 3."""
    coded: Bits = (steps << 1) ^ np.negative(steps >> (8 * steps.itemsize - 1))
    return coded


def unzigzag(coded: Bits) -> Bits:
    """Undo `zigzag`."""
    steps: Bits = (coded >> 1) ^ np.negative(coded & 1)
    return steps


def planes_of(values: Bits) -> Bytes:
    """Shape (item bytes, count): all lowest bytes, then all second ones, ..."""
    return np.ascontiguousarray(values.view(np.uint8).reshape(-1, values.itemsize).T)


def values_of(planes: list[Bytes]) -> Bits:
    """Undo `planes_of`; one array per plane."""
    values = planes[-1].astype(f"<u{len(planes)}")
    for plane in reversed(planes[:-1]):
        values <<= 8
        values |= plane
    return values
