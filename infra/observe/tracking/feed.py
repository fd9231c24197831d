"""A tracker in a thread of its own: however slow or broken it is, the run does not notice."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from infra.observe.tracking.tracker import Factory, TrackedRun
from infra.runs.metrics import Kind

T = TypeVar("T")

logger = logging.getLogger(__name__)

_ROOM = 1000
"""Lines that may wait for a slow tracker."""
_Line = tuple[Kind, Mapping[str, float]]


class Feed:
    """Hands lines to one tracker, in order. What goes wrong is logged once.

    Args:
        name: Of the tracker, for the log.
        factory: Makes it.
        run: That it is told of.
        room: Lines that may wait; further ones are lost to this tracker.
    """

    def __init__(self, name: str, factory: Factory, run: TrackedRun, *, room: int = _ROOM) -> None:
        self._name = name
        self._factory = factory
        self._run = run
        self._lines: queue.Queue[_Line | None] = queue.Queue(room)
        self._said: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def offer(self, kind: Kind, values: Mapping[str, float]) -> None:
        """Pass on a line, or lose it: never waits."""
        if self._over.is_set():
            return
        try:
            self._lines.put_nowait((kind, values))
        except queue.Full:
            self._say_once(f"is {self._lines.maxsize} lines behind: it loses some")

    def close(self, timeout_s: float) -> None:
        """Let it take what waits, and end; after the timeout it is left behind."""
        deadline = time.monotonic() + timeout_s
        try:
            self._lines.put(None, timeout=timeout_s)
        except queue.Full:
            pass
        else:
            self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self._over.set()
            self._say_once(f"does not end within {timeout_s:g} s: left behind")

    def _work(self) -> None:
        tracker = self._tried(
            "cannot begin, the run goes on without it", lambda: self._factory(self._run)
        )
        if tracker is None:
            self._over.set()
            self._drain()
            return
        while (line := self._lines.get()) is not None:
            self._tried("did not take a line, the run goes on", partial(tracker.log, *line))
        self._tried("did not close", tracker.close)

    def _tried(self, what: str, call: Callable[[], T]) -> T | None:
        try:
            return call()
        except Exception as error:  # the boundary to trackers
            self._say_once(f"{what}: {_words(error)}")
            return None

    def _drain(self) -> None:
        while self._lines.get() is not None:
            continue

    def _say_once(self, what: str) -> None:
        if what.partition(":")[0] not in self._said:
            self._said.add(what.partition(":")[0])
            logger.warning("tracker %s %s", self._name, what)


def _words(error: Exception) -> str:
    return str(error) if type(error).__module__.startswith("infra.") else f"{error!r}"
