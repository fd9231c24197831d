"""A clock that stands still while the run is paused, and a bell that wakes who waits."""

import asyncio
import time
from collections.abc import Callable

FROZEN_S = 15.0
"""Somebody looks at the clock every few seconds. A longer gap is a process that did not run."""


class PausableClock:
    """Monotonic seconds of running time: neither pauses count, nor times when we were frozen."""

    def __init__(self, source: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._lost = 0.0
        self._seen = source()
        self._paused_at: float | None = None

    @property
    def paused(self) -> bool:
        """Whether it stands still."""
        return self._paused_at is not None

    def now(self) -> float:
        """Seconds, not counting pauses and freezes."""
        if self._paused_at is not None:
            return self._paused_at - self._lost
        return self._look() - self._lost

    def pause(self) -> None:
        """Stand still."""
        if self._paused_at is None:
            self._paused_at = self._look()

    def resume(self) -> None:
        """Go on from where it stood."""
        if self._paused_at is not None:
            self._seen = self._source()
            self._lost += self._seen - self._paused_at
            self._paused_at = None

    def _look(self) -> float:
        now, before = self._source(), self._seen
        self._seen = now
        if now - before > FROZEN_S:
            self._lost += now - before
        return now


class Bell:
    """Wakes everyone who waits at the moment when it rings."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        """Something changed: look again."""
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the next ring; False when the time is up first."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return False
        return True
