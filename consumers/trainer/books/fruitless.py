"""Closings without a group to train on: counted, and explained when they are too many."""

from collections import Counter
from collections.abc import Iterable

from schemas.journal import Closed


class Fruitless:
    """Consecutive closings during which no group became trainable."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._reasons: Counter[tuple[str, str]] = Counter()

    def reset(self) -> None:
        """A group became trainable."""
        self._reasons.clear()

    def add(self, closed: Iterable[Closed]) -> None:
        """Count closings."""
        self._reasons.update((one.end, one.reason) for one in closed)

    @property
    def exceeded(self) -> bool:
        """Whether there were too many."""
        return self._reasons.total() >= self._limit

    def explain(self) -> str:
        """How many, and the dominant reason."""
        ends = Counter[str]()
        for (end, _), count in self._reasons.items():
            ends[end] += count
        end, num = ends.most_common(1)[0]
        (_, reason), _ = max(
            ((key, count) for key, count in self._reasons.items() if key[0] == end),
            key=lambda entry: entry[1],
        )
        total = self._reasons.total()
        return f"{total} groups closed without one to train on; {num} of them {end}: {reason}"
