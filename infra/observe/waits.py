"""Waiting lines: nothing waits in silence."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Literal

from infra.roles.errors import DeadlinePassed

logger = logging.getLogger(__name__)


class Waits:
    """The waits of one process: each is logged after a while, and heartbeats report the oldest.

    Args:
        warn_after_s: Seconds until the first line, and between lines.
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
            started = time.monotonic()
            warned = False
            while True:
                await asyncio.sleep(self._warn_after_s)
                waited = time.monotonic() - started
                logger.info("waiting for %s · %.0f s", describe(), waited)
                if deadline_s is None or waited < deadline_s:
                    continue
                if self._on_deadline == "stop" and body is not None:
                    expired = True
                    body.cancel()
                    return
                if not warned:
                    warned = True
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
