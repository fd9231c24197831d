"""When a replayed message is due."""

import argparse
import time
from collections.abc import Callable


class Pace:
    """Keeps the distances of the original, or a fraction of them.

    The senders' clocks told whole seconds: what they sent within one goes out together.

    Args:
        speed: 1 is the original's, 2 twice as fast; infinite: at once.
        clock: Monotonic seconds.
    """

    def __init__(self, speed: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._speed = speed
        self._clock = clock
        self._began: tuple[float, int] | None = None

    def wait_s(self, timestamp: int) -> float:
        """Seconds until a message is due; nothing for one that is older than the first."""
        if self._began is None:
            self._began = (self._clock(), timestamp)
        at, first = self._began
        return max(0.0, at + (timestamp - first) / self._speed - self._clock())


def parse_speed(text: str) -> float:
    """`original`, `max`, or how many times as fast as the original.

    Raises:
        argparse.ArgumentTypeError: It is nothing of that.
    """
    named = {"original": 1.0, "max": float("inf")}
    try:
        speed = named[text] if text in named else float(text.removesuffix("x"))
    except ValueError:
        speed = 0.0
    if not speed > 0:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no speed: write original, max, or a number (2 is twice as fast)"
        )
    return speed
