"""How far a long command has come: one line on the terminal, nothing in files and pipes."""

import sys
import time
from collections.abc import Callable

_PERIOD_S = 0.5


class Progress:
    """Counts on standard error, where that is a terminal.

    Args:
        what: Is counted, as in `rollouts replayed`.
        clock: Monotonic seconds.
    """

    def __init__(self, what: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._clock = clock
        self._shown = False
        self._last = clock()

    def show(self, number: int) -> None:
        """So many; not more often than twice a second."""
        now = self._clock()
        if not sys.stderr.isatty() or now - self._last < _PERIOD_S:
            return
        self._last, self._shown = now, True
        sys.stderr.write(f"\r{number:,} {self._what}")
        sys.stderr.flush()

    def clear(self) -> None:
        """Make room for what is printed next."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._shown = False
