"""Where a role's CPU time goes: a sampling profile that costs a few percent.

A timer that runs on the process's CPU clock interrupts it every few milliseconds; whichever thread is
not waiting is at work, and the innermost frame of ours that has a name below tells at what.
"""

import json
import signal
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

PERIOD_S = 0.004
_WAITING = {"select", "poll", "wait", "_recv", "recv_bytes", "read", "_worker"}
_BY_FUNCTION = {
    ("codec.py", "encode"): "encode",
    ("codec.py", "decode"): "validate",
}
_BY_FILE = {
    "publisher.py": "publish",
    "dead.py": "publish",
    "mailbox.py": "threads",
}
_CONSUMER = {"ack": "acknowledge", "flush": "acknowledge", "_flush": "acknowledge"}
OPERATIONS = (
    "encode",
    "validate",
    "publish",
    "get",
    "acknowledge",
    "wire",
    "threads",
    "event loop",
    "role",
)


class Sampler:
    """Counts samples by operation until `save`."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.places: Counter[str] = Counter()

    def start(self) -> None:
        """Begin; main thread only."""
        signal.signal(signal.SIGPROF, self._tick)
        signal.setitimer(signal.ITIMER_PROF, PERIOD_S, PERIOD_S)

    def reset(self) -> None:
        """Forget what was counted."""
        self.counts.clear()
        self.places.clear()

    def save(self, path: Path) -> None:
        """Write counts as JSON."""
        path.write_text(
            json.dumps({"operations": self.counts, "places": dict(self.places.most_common(25))})
        )

    def _tick(self, _number: int, frame: FrameType | None) -> None:
        here = sys._getframe()
        for top in sys._current_frames().values():
            start = frame if top is here or top.f_back is here else top
            if start is None or start.f_code.co_name in _WAITING:
                continue
            operation, place = _classify(start)
            self.counts[operation] += 1
            self.places[place] += 1


def _classify(frame: FrameType) -> tuple[str, str]:
    place, pika = "", False
    current: FrameType | None = frame
    while current is not None:
        code = current.f_code
        path, function = code.co_filename, code.co_name
        name = path.rsplit("/", 1)[-1]
        place = place or f"{name}:{function}"
        found = _BY_FUNCTION.get((name, function))
        if found:
            return found, place
        if "/amqp/" in path:
            if name == "consumer.py":
                return _CONSUMER.get(function, "get"), place
            if name in _BY_FILE:
                return _BY_FILE[name], place
        if name == "connection.py" and "/pika/" in path and function == "_deliver_frame_to_channel":
            method = getattr(getattr(current.f_locals.get("value"), "method", None), "NAME", "")
            return ("publish" if method in {"Basic.Ack", "Basic.Return"} else "get"), place
        if "/consumers/" in path or "/producers/" in path:
            return "role", place
        if "/pika/" in path:
            pika = True
        current = current.f_back
    return ("wire" if pika else "event loop"), place
