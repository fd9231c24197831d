"""Which tool calls run now, and how long those before them took."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from schemas.reports import ToolInUse, short

_LATELY_S = 30.0


@dataclass(frozen=True, slots=True)
class _Running:
    name: str
    since: float
    limit_s: float


class RunningCalls:
    """Calls of one worker.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._running: dict[str, _Running] = {}
        self._finished: dict[str, tuple[int, float]] = {}
        self._given_up: tuple[str, _Running] | None = None
        self.num_calls = 0
        """Calls that began."""
        self.num_timeouts = 0
        """Calls that were given up at their limit."""

    @contextmanager
    def noted(self, call_id: str, name: str, limit_s: float) -> Iterator[None]:
        """A call runs inside."""
        self.num_calls += 1
        self._running[call_id] = call = _Running(name, self._clock(), limit_s)
        try:
            yield
        finally:
            self._running.pop(call_id, None)
            took_s = self._clock() - call.since
            if took_s >= limit_s:
                self._given_up = call_id, call
            else:
                count, total_s = self._finished.get(name, (0, 0.0))
                self._finished[name] = count + 1, total_s + took_s

    def longest(self) -> ToolInUse | None:
        """The call that has run for longest, or was given up lately; None when there is none."""
        now = self._clock()
        candidates = list(self._running.items())
        last = self._given_up
        if last is not None and now - last[1].since - last[1].limit_s < _LATELY_S:
            candidates.append(last)
        if not candidates:
            return None
        call_id, call = min(candidates, key=lambda entry: entry[1].since)
        given_up = call_id not in self._running
        running_s = call.limit_s if given_up else max(0.0, now - call.since)
        count, total_s = self._finished.get(call.name, (0, 0.0))
        return ToolInUse(
            name=short(call.name),
            rollout_id=short(call_id.rsplit(":", 2)[0]),
            running_s=round(running_s, 1),
            usual_s=round(total_s / count, 3) if count else 0.0,
            limit_s=call.limit_s,
            given_up=given_up,
        )
