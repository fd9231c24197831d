"""How closed groups ended, in two bits each."""

import base64
import binascii
import zlib
from enum import StrEnum
from typing import Any


class End(StrEnum):
    """The one way in which a group ended."""

    TRAINED = "trained"
    """Its members were in a batch."""
    FILTERED = "filtered"
    """All rewards equal: nothing to learn."""
    STALE = "stale"
    """Staleness took the last needed member."""
    DEAD = "dead"
    """Too few members came back."""


_CODES = tuple(End)


class Ends:
    """Ends by group number. What is written once can never change."""

    def __init__(self) -> None:
        self._bits = bytearray()
        self._known = bytearray()
        self.counts: dict[End, int] = dict.fromkeys(_CODES, 0)

    def get(self, group: int) -> End | None:
        """How a group ended; None while it is open or was never issued."""
        byte, shift = divmod(group, 8)
        if byte >= len(self._known) or not self._known[byte] >> shift & 1:
            return None
        return _CODES[self._bits[group // 4] >> group % 4 * 2 & 3]

    def set(self, group: int, end: End) -> None:
        """Write an end.

        Raises:
            ValueError: The group has ended before.
        """
        before = self.get(group)
        if before is not None:
            raise ValueError(f"group {group} cannot end as {end}: it ended as {before}")
        if group // 8 >= len(self._known):
            self._known.extend(bytes(group // 8 + 1 - len(self._known)))
            self._bits.extend(bytes(2 * len(self._known) - len(self._bits)))
        self._known[group // 8] |= 1 << group % 8
        self._bits[group // 4] |= _CODES.index(end) << group % 4 * 2
        self.counts[end] += 1

    def to_json(self) -> dict[str, Any]:
        """For checkpoints: a few bytes per thousand groups."""
        return {"known": _pack(self._known), "bits": _pack(self._bits)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Ends":
        """The inverse of `to_json`."""
        ends = cls()
        ends._known, ends._bits = _unpack(data["known"]), _unpack(data["bits"])
        for group in range(8 * len(ends._known)):
            end = ends.get(group)
            if end is not None:
                ends.counts[end] += 1
        return ends


def _pack(data: bytearray) -> str:
    return base64.b64encode(zlib.compress(bytes(data))).decode()


def _unpack(text: str) -> bytearray:
    return bytearray(zlib.decompress(binascii.a2b_base64(text)))
