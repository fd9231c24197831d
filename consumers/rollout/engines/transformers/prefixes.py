"""Which tokens' keys and values the rows of the store hold, running or free.

A row stays what it is when its sequence has left, until another needs it: the least recently
used goes first. There is no other memory for prefixes, so the store bounds it.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_NOTHING = -1


class Prefixes:
    """The tokens of each row.

    Args:
        num_rows: Rows of the store.
        max_columns: Longest sequence.
    """

    def __init__(self, num_rows: int, max_columns: int) -> None:
        self._tokens = np.full((num_rows, max_columns), _NOTHING, np.int32)
        self._used = np.zeros(num_rows, np.int64)
        self._clock = 0
        self.lengths = [0] * num_rows
        """Tokens that each row holds."""

    def shared(self, token_ids: Sequence[int]) -> npt.NDArray[np.int64]:
        """What each row has in common with the beginning of a sequence, in tokens, (rows,).

        At most all but the last token, whose logits nobody has kept.
        """
        wanted = np.asarray(token_ids[:-1], np.int32)
        same = self._tokens[:, : len(wanted)] == wanted
        lengths: npt.NDArray[np.int64] = np.logical_and.accumulate(same, axis=1).sum(axis=1)
        return lengths

    def hold(self, row: int, token_ids: Sequence[int]) -> None:
        """A row holds these tokens from now on, and no others; with none, it goes first."""
        self._tokens[row, : len(token_ids)] = token_ids
        self._tokens[row, len(token_ids) :] = _NOTHING
        self.lengths[row] = len(token_ids)
        self.use(row)
        if not token_ids:
            self._used[row] = 0

    def use(self, row: int) -> None:
        """A row was of use just now."""
        self._clock += 1
        self._used[row] = self._clock

    def exchange(self, row: int, other: int) -> None:
        """Two rows have changed places."""
        for values in (self._tokens, self._used):
            values[[row, other]] = values[[other, row]]
        self.lengths[row], self.lengths[other] = self.lengths[other], self.lengths[row]

    def oldest(self, first_row: int) -> int:
        """The least recently used row from `first_row` on."""
        return first_row + int(self._used[first_row:].argmin())

    def forget(self) -> None:
        """No row holds anything that may be used again."""
        self._tokens.fill(_NOTHING)
        self._used.fill(0)
        self.lengths = [0] * len(self.lengths)
