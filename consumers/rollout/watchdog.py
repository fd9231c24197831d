"""A thread that notices when the event loop stands still.

Agents and parsers are called on the event loop. One that never returns would keep this worker's
rollouts for ever: its connections live in another thread, so that the broker sees nothing wrong.

every second: ask the loop for a sign of life -> none for `limit_s`: name the line, exit 1
              the broker gives the messages to others; what did it is found as any poison is
"""

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Self

from infra.roles.errors import ExitCode
from infra.roles.fleet.processes import leave_at_once

logger = logging.getLogger(__name__)

_PERIOD_S = 1.0


class Watchdog:
    """Watches the running event loop while the context is open.

    Time in which this process did not run at all (SIGSTOP) does not count.

    Args:
        limit_s: Without a sign of life for this long, the loop hangs.
        on_hang: Called once, in the watching thread; ends the process if not given.
        period_s: Between two looks.
    """

    def __init__(
        self,
        limit_s: float,
        *,
        on_hang: Callable[[], None] | None = None,
        period_s: float = _PERIOD_S,
    ) -> None:
        self._limit_s = limit_s
        self._on_hang = on_hang or partial(leave_at_once, ExitCode.FAILED)
        self._period_s = min(period_s, limit_s / 4)
        self._still_s = 0.0
        self._over = threading.Event()

    def __enter__(self) -> Self:
        watched = threading.get_ident()
        watching = threading.Thread(
            target=self._watch,
            args=(asyncio.get_running_loop(), watched),
            name="watchdog",
            daemon=True,
        )
        watching.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _watch(self, loop: asyncio.AbstractEventLoop, watched: int) -> None:
        last = time.monotonic()
        while not self._over.wait(self._period_s):
            now = time.monotonic()
            self._still_s += min(now - last, 2 * self._period_s)
            last = now
            if self._still_s > self._limit_s:
                self._tell(watched)
                self._on_hang()
                return
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._alive)

    def _alive(self) -> None:
        self._still_s = 0.0

    def _tell(self, watched: int) -> None:
        frame = sys._current_frames().get(watched)
        where = "".join(traceback.format_stack(frame)[-3:]) if frame is not None else ""
        logger.critical(
            "the event loop has stood still for %.0f s, so nothing can be handed over: leaving; an "
            "agent or a parser that does not return? [rollout] stall_timeout sets the time\n%s",
            self._still_s,
            where.rstrip(),
        )
