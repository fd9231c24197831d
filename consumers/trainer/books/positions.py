"""Which place of the shuffled dataset a group has. Pure, like the ledger.

group     0 1 2 3 4 5 6      5 stands in for 1, which was requeued:
position  0 1 2 3 4 1 5      so 6 takes up where 4 left off, and no prompt is left out
"""

from bisect import bisect_left
from typing import Any


class Positions:
    """Positions of groups: their numbers, but for those that stand in for others."""

    def __init__(self) -> None:
        self.wanted: list[int] = []
        """Positions that are to be issued once more, in order."""
        self._stand_ins: dict[int, int] = {}
        self._numbers: list[int] = []

    def of(self, group: int) -> int:
        """Where a group's prompt is."""
        found = self._stand_ins.get(group)
        return group - bisect_left(self._numbers, group) if found is None else found

    def want(self, group: int) -> None:
        """Somebody is to stand in for a group."""
        self.wanted.append(self.of(group))

    def stand_in(self, group: int, position: int) -> None:
        """A new group, with a higher number than all before, takes a wanted position.

        Raises:
            ValueError: Nobody wants it.
        """
        self.wanted.remove(position)
        self._stand_ins[group] = position
        self._numbers.append(group)

    def to_json(self) -> dict[str, Any]:
        """For checkpoints."""
        return {"wanted": self.wanted, "stand_ins": list(self._stand_ins.items())}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Positions":
        """The inverse of `to_json`."""
        positions = cls()
        positions.wanted = list(data["wanted"])
        positions._stand_ins = dict(data["stand_ins"])
        positions._numbers = list(positions._stand_ins)
        return positions
