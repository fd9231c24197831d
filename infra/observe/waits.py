"""Waiting lines: nothing waits in silence."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Literal

from infra.roles.errors import DeadlinePassed

logger = logging.getLogger(__name__)

_THINNEST = 30
_JITTER_S = 0.05


class Waits:
    """The waits of one process: each is logged after a while, and heartbeats report the oldest.

    Args:
        warn_after_s: Seconds until the first line; the next follow ever more slowly.
        on_deadline: Whether a passed deadline only warns or ends the role.
    """

    def __init__(
        self, *, warn_after_s: float = 10.0, on_deadline: Literal["warn", "stop"] = "warn"
    ) -> None:
        self._warn_after_s = warn_after_s
        self._on_deadline = on_deadline
        self._open: dict[int, tuple[Callable[[], str], float]] = {}
        self._next = 0

    def current(self) -> tuple[str, float]:
        """What is waited for longest, and for how many seconds; `("", 0.0)` when nothing is."""
        if not self._open:
            return "", 0.0
        what, since = min(self._open.values(), key=lambda entry: entry[1])
        return what(), time.monotonic() - since

    @asynccontextmanager
    async def __call__(
        self, what: str | Callable[[], str], *, deadline_s: float | None = None
    ) -> AsyncIterator[None]:
        """Name a wait while the body awaits it.

        Args:
            what: What is missing, with numbers; a callable is asked again for each line.
            deadline_s: Seconds after which it has taken too long.

        Raises:
            DeadlinePassed: The deadline passed and `on_deadline` is `stop`.
        """
        describe = what if callable(what) else lambda: str(what)
        key, self._next = self._next, self._next + 1
        self._open[key] = (describe, time.monotonic())
        body = asyncio.current_task()
        expired = False

        async def watch() -> None:
            nonlocal expired
            async for waited, passed in _looks(self._warn_after_s, deadline_s):
                if not passed:
                    logger.info("waiting for %s · %.0f s", describe(), waited)
                elif self._on_deadline == "stop" and body is not None:
                    expired = True
                    body.cancel()
                    return
                else:
                    logger.warning("deadline of %.0f s passed: %s", deadline_s, describe())

        watcher = asyncio.ensure_future(watch())
        try:
            yield
        except asyncio.CancelledError:
            if expired:
                raise DeadlinePassed(
                    f"waited more than {deadline_s:.0f} s for {describe()}",
                    hint="look at the role that should deliver it, or raise [deadlines]",
                ) from None
            raise
        finally:
            watcher.cancel()
            del self._open[key]


async def _looks(
    warn_after_s: float, deadline_s: float | None
) -> AsyncIterator[tuple[float, bool]]:
    """When to say something about a wait: seconds waited, and whether the deadline passed just now.

    The pauses between lines double, up to `_THINNEST` of the first. A wait during which this
    process was frozen is not charged for it: a pause counts for at most twice its length.
    """
    waited, pause, line_at = 0.0, warn_after_s, warn_after_s
    passed = deadline_s is None
    while True:
        until = line_at if passed or deadline_s is None else min(line_at, deadline_s)
        wanted, began = max(until - waited, 0.0), time.monotonic()
        await asyncio.sleep(wanted)
        waited += min(time.monotonic() - began, 2 * wanted + _JITTER_S)
        if not passed and deadline_s is not None and waited >= deadline_s:
            passed = True
            yield waited, True
        if waited >= line_at:
            pause = min(2 * pause, _THINNEST * warn_after_s)
            line_at = waited + pause
            yield waited, False
