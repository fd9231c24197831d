"""How closed groups ended, in two bits each.

    0 ..................... watermark ........................ top
    every group has ended   | ended, but for those in `open`   | nothing is known

Two bits name one of four ends and cannot say "not yet": that is what the few numbers in `open` are
for. So the size does not depend on how long a straggler stays open.
"""

import base64
import zlib
from collections import Counter
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
    """Ends by group number. What is written once changes in one case only: see `die`."""

    def __init__(self) -> None:
        self._bits = bytearray()
        self._top = 0
        self._open: set[int] = set()
        self.counts: dict[End, int] = dict.fromkeys(_CODES, 0)

    @property
    def watermark(self) -> int:
        """Every group below it has ended."""
        return min(self._open, default=self._top)

    @property
    def size_bytes(self) -> int:
        """Memory that the ends take, without the few open numbers."""
        return self._bits.__sizeof__()

    def get(self, group: int) -> End | None:
        """How a group ended; None while it is open or was never issued."""
        if group >= self._top or group in self._open:
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
        if group >= self._top:
            self._open.update(range(self._top, group))
            self._top = group + 1
            self._bits.extend(bytes(group // 4 + 1 - len(self._bits)))
        self._open.discard(group)
        self._write(group, end)
        self.counts[end] += 1

    def die(self, group: int) -> None:
        """A trained group ends as dead after all: its step could not be taken and was skipped.

        Raises:
            ValueError: It did not end as trained.
        """
        before = self.get(group)
        if before is not End.TRAINED:
            raise ValueError(f"group {group} was not trained, it is {before or 'open'}")
        self._write(group, End.DEAD)
        self.counts[End.TRAINED] -= 1
        self.counts[End.DEAD] += 1

    def to_json(self) -> dict[str, Any]:
        """For checkpoints: at most 2.5 bits a group, far less when one end prevails."""
        packed = base64.b85encode(zlib.compress(bytes(self._bits), 1)).decode()
        return {"top": self._top, "open": sorted(self._open), "bits": packed}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Ends":
        """The inverse of `to_json`."""
        ends = cls()
        ends._top, ends._open = data["top"], set(data["open"])
        ends._bits = bytearray(zlib.decompress(base64.b85decode(data["bits"])))
        ends._count()
        return ends

    def _write(self, group: int, end: End) -> None:
        byte, shift = group // 4, group % 4 * 2
        self._bits[byte] = self._bits[byte] & ~(3 << shift) | _CODES.index(end) << shift

    def _count(self) -> None:
        """By whole bytes; what no end was written for reads as the first code."""
        for byte, times in Counter(self._bits).items():
            for shift in (0, 2, 4, 6):
                self.counts[_CODES[byte >> shift & 3]] += times
        self.counts[_CODES[0]] -= 4 * len(self._bits) - self._top + len(self._open)
