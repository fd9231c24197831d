"""Where a role's CPU time goes: a sampling profile that costs a few percent.

A timer that runs on the process's CPU clock interrupts it every few milliseconds. Each thread is
charged with the CPU time that it used since the last tick (its own clock tells), at the innermost
of its frames that has a name below. A thread that waits at the tick has worked and stopped since
the last one, unseen: that time is spread over what the thread was seen at.
"""

import json
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from types import FrameType

PERIOD_S = 0.004
_BY_FUNCTION = {
    ("codec.py", "encode"): "encode",
    ("codec.py", "decode"): "validate",
    ("connection.py", "publish"): "publish",
    ("connection.py", "publish_all"): "publish",
    ("publisher.py", "to_publication"): "publish",
    ("connection.py", "take"): "get",
    ("connection.py", "ack"): "acknowledge",
    ("connection.py", "held"): "acknowledge",
    ("consumer.py", "ack"): "acknowledge",
    ("consumer.py", "flush"): "acknowledge",
    ("consumer.py", "_send_acks"): "acknowledge",
    ("wire.py", "to_properties"): "publish",
    ("wire.py", "to_delivery"): "get",
}
_BY_FILE = {
    "publisher.py": "publish",
    "dead.py": "publish",
    "consumer.py": "get",
    "gets.py": "get",
    "subscription.py": "get",
    "mailbox.py": "threads",
    "io_thread.py": "threads",
    "writes.py": "wire",
}
_WAITING = {("selectors.py", "select"), ("runners.py", "run"), ("io_thread.py", "_run")}
"""Innermost functions of a thread whose event loop waits, in Python or in C."""
_MODELS = {"model_dump": "encode", "model_dump_json": "encode"}
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
    """CPU microseconds by operation, from `start` to `save`."""

    def __init__(self) -> None:
        self._seen: dict[int, Counter[tuple[str, str]]] = {}
        self._unseen: Counter[int] = Counter()
        self._clocks: dict[int, int] = {}

    def start(self) -> None:
        """Begin; main thread only."""
        signal.signal(signal.SIGPROF, self._tick)
        signal.setitimer(signal.ITIMER_PROF, PERIOD_S, PERIOD_S)

    def save(self, path: Path) -> None:
        """Write counts as JSON."""
        operations: Counter[str] = Counter()
        places: Counter[str] = Counter()
        for thread, seen in self._seen.items():
            scale = 1 + self._unseen[thread] / seen.total()
            for (operation, place), spent in seen.items():
                operations[operation] += round(scale * spent)
                places[place] += round(scale * spent)
        path.write_text(
            json.dumps({"operations": operations, "places": dict(places.most_common(25))})
        )

    def _tick(self, _number: int, frame: FrameType | None) -> None:
        here = sys._getframe()
        for thread, top in sys._current_frames().items():
            clock = time.clock_gettime_ns(time.pthread_getcpuclockid(thread))
            spent = clock - self._clocks.get(thread, clock)
            self._clocks[thread] = clock
            start = frame if top is here or top.f_back is here else top
            if start is None or spent <= 0:
                continue
            code = start.f_code
            if (code.co_filename.rsplit("/", 1)[-1], code.co_name) in _WAITING:
                self._unseen[thread] += spent // 1000
            else:
                self._seen.setdefault(thread, Counter())[_classify(start)] += spent // 1000


def _classify(frame: FrameType) -> tuple[str, str]:
    place, pika = "", False
    current: FrameType | None = frame
    while current is not None:
        code = current.f_code
        path, function = code.co_filename, code.co_name
        name = path.rsplit("/", 1)[-1]
        if pika and name == "io_thread.py":
            return "wire", place
        place = place or f"{name}:{function}"
        if "/infra/amqp/" in path:
            found = _BY_FUNCTION.get((name, function)) or _BY_FILE.get(name)
            if found:
                return found, place
        elif "/pydantic/" in path:
            return _MODELS.get(function, "validate"), place
        elif name == "connection.py" and "/pika/" in path:
            if function == "_deliver_frame_to_channel":
                method = getattr(getattr(current.f_locals.get("value"), "method", None), "NAME", "")
                return ("publish" if method in {"Basic.Ack", "Basic.Return"} else "get"), place
        elif "/consumers/" in path or "/producers/" in path:
            return "role", place
        pika = pika or "/pika/" in path
        current = current.f_back
    return ("wire" if pika else "event loop"), place
