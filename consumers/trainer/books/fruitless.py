"""Closings without a group to train on: counted, and explained when they are too many."""

from collections import Counter
from collections.abc import Iterable

from consumers.trainer.books.ends import End
from schemas.journal import Closed


class Fruitless:
    """Consecutive closings during which no group became trainable.

    Equal rewards may be a policy that has yet to learn. A run in which every group dies is broken:
    it is hopeless after twice as many.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._reasons: Counter[tuple[str, str]] = Counter()
        self._said = 0

    def reset(self) -> None:
        """A group became trainable."""
        self._reasons.clear()
        self._said = 0

    def add(self, closed: Iterable[Closed]) -> None:
        """Count closings."""
        self._reasons.update((one.end, one.reason) for one in closed)

    def said(self) -> None:
        """It was told; the next time is after as many again."""
        self._said = self._reasons.total()

    @property
    def exceeded(self) -> bool:
        """Whether there were too many since it was told last."""
        return self._reasons.total() - self._said >= self._limit

    @property
    def hopeless(self) -> bool:
        """Whether twice as many closed, and every one of them died."""
        ends = {end for end, _ in self._reasons}
        return ends == {End.DEAD.value} and self._reasons.total() >= 2 * self._limit

    @property
    def reason(self) -> str:
        """The dominant one; empty when none closed."""
        return self._reasons.most_common(1)[0][0][1] if self._reasons else ""

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
