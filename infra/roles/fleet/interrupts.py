"""Ctrl-C and SIGTERM for `up`: the first asks, the second insists."""

import signal
from types import FrameType
from typing import Self


class Interrupts:
    """Counts the signals while it is entered.

    Until `armed`, when nothing runs yet that could hand over, the first raises KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.count = 0
        self.armed = False
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._heard)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _heard(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if not self.armed:
            raise KeyboardInterrupt
