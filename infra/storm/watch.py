"""What can be seen of a run from outside: heartbeats, its journal's size, its metrics.

Heartbeats come straight from the broker, not through the proxy. They are two seconds apart, which
is the resolution of every recovery time that rests on them.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from infra.amqp.codec import decode
from infra.amqp.connection import Broker
from infra.amqp.errors import BadMessage
from infra.runs.folder import RunFolder
from infra.storm.schedule import role_of
from schemas.control import Heartbeat

_TICK_S = 0.1
_WORK_COUNTERS = {"reward": ("scored", "failed"), "producer": ("credits",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A heartbeat, or nothing yet, at a moment."""

    at: float
    """On the monotonic clock."""
    pid: int
    rollout_ids: tuple[str, ...]
    counters: Mapping[str, float]
    version: int
    tokens_unsaved: int = 0

    def work_done(self, role: str) -> float:
        """What the process has done since it started, where its role counts that."""
        return sum(self.counters.get(name, 0.0) for name in _WORK_COUNTERS.get(role, ()))


class Watch:
    """Listens until cancelled.

    Args:
        broker: A connection straight to the broker.
        folder: Of the run.
    """

    def __init__(self, broker: Broker, folder: RunFolder) -> None:
        self._broker = broker
        self._folder = folder
        self._steps = StepReader(folder.metrics)
        self.latest: dict[str, Seen] = {}
        """Worker -> its newest heartbeat."""

    async def run(self) -> None:
        """Hear heartbeats until cancelled."""
        async for delivery in self._broker.events():
            if delivery.envelope.type != Heartbeat.__name__:
                continue
            try:
                beat = decode(delivery, delivery.body, Heartbeat)
            except BadMessage:
                continue
            self.latest[beat.worker] = Seen(
                at=time.monotonic(),
                pid=beat.pid,
                rollout_ids=beat.rollout_ids,
                counters=beat.counters,
                version=beat.version,
                tokens_unsaved=beat.tokens_unsaved,
            )

    def step(self) -> int:
        """The newest step in `metrics.jsonl`."""
        return self._steps.newest()

    def fleet(self) -> dict[str, int]:
        """Name -> process id, of the role processes that run now."""
        try:
            found = json.loads(self._folder.fleet.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return {str(name): int(pid) for name, pid in found.items()}

    def tokens_unsaved(self, worker: str, pid: int) -> int:
        """What a rollout worker had generated since its snapshots, when last heard."""
        seen = self.latest.get(worker)
        if seen is None or seen.pid != pid:
            return 0
        return seen.tokens_unsaved

    async def until(
        self, condition: Callable[[], bool], timeout_s: float, *, every_s: float = _TICK_S
    ) -> bool:
        """Wait for something to be seen; whether it was, in time."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(every_s)
        return True

    def working_again(self, names: tuple[str, ...], *, without: int = 0) -> Callable[[], bool]:
        """A condition: each of these has worked since now.

        A rollout worker works when it holds rollouts; a reward worker when it has scored one that
        its first heartbeat from now on does not count yet; a producer likewise, of credits; the
        trainer when it has made a step.

        Args:
            without: A process id that does not count: the one that was killed.
        """
        since = time.monotonic()
        first: dict[str, Seen] = {}
        first_step = self.step()
        missing = set(names)

        def condition() -> bool:
            for name in tuple(missing):
                role = role_of(name)
                if role == "trainer":
                    if self.step() > first_step:
                        missing.discard(name)
                    continue
                seen = self.latest.get(name)
                if seen is None or seen.at <= since or seen.pid == without:
                    continue
                if first.setdefault(name, seen).pid != seen.pid:
                    first[name] = seen
                if _works(role, seen, first[name]):
                    missing.discard(name)
            return not missing

        return condition


def _works(role: str, seen: Seen, first: Seen) -> bool:
    if role == "rollout":
        return bool(seen.rollout_ids)
    return seen.work_done(role) > first.work_done(role)


class StepReader:
    """Follows `metrics.jsonl`, reading each byte once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._newest = 0

    def newest(self) -> int:
        """The highest step; 0 before the first."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._offset += len(line)
                    self._newest = max(self._newest, _step_of(line))
        except OSError:
            pass
        return self._newest


def _step_of(line: bytes) -> int:
    try:
        values = json.loads(line)
        return int(values["step"]) if values["kind"] == "step" else 0
    except (ValueError, KeyError, TypeError):
        return 0
