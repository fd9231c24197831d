"""Heartbeats: what a role is doing, every two seconds, to whoever listens on `events`."""

import asyncio
import os
import shutil
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from infra.roles.context import RoleContext
from schemas.control import Heartbeat
from schemas.reports import short

PERIOD_S = 2.0
LEFT = "left"
"""State of a process's last heartbeat."""
BEFORE_VARIABLE = "WARREN_BEFORE"
"""Told by a supervisor: how the process of this name before us ended."""
_CLOSEST_S = 0.1
_NEWS_S = 30.0
_STARTED = time.monotonic()


@dataclass(slots=True, kw_only=True)
class ProcessCounters:
    """What must not grow with time, whatever the role: a leak shows here first."""

    num_threads: int
    num_blocks: int
    """Python's own allocations, which tell of a leak long before the resident size."""
    up_s: float
    """Seconds since the process began."""
    num_tasks: int | None = None
    """Of the event loop."""
    num_files: int | None = None
    """Open file descriptors."""
    rss_bytes: int | None = None
    """Resident memory."""
    disk_free_bytes: int | None = None
    """Free where the run folder is, if it is on this machine."""

    def as_floats(self) -> dict[str, float]:
        """By name; what this system does not tell is left out."""
        return {name: float(value) for name, value in asdict(self).items() if value is not None}


class Disk:
    """Free space, asked for in a thread: a dead network disk answers never."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._asking: asyncio.Future[int | None] | None = None
        self.free_bytes: int | None = None

    def look(self) -> None:
        """Take over the answer, and ask again; returns at once."""
        if self._asking is not None:
            if not self._asking.done():
                return
            self.free_bytes = self._asking.result()
        self._asking = asyncio.ensure_future(asyncio.to_thread(self._free))

    def _free(self) -> int | None:
        with suppress(OSError):
            return shutil.disk_usage(self._path).free
        return None


async def send_heartbeats(context: RoleContext) -> None:
    """Send until cancelled, at once when `context.beat` is set. Unconfirmed and transient: a lost
    one is followed by the next."""
    disk = Disk(context.folder.root)
    while True:
        disk.look()
        await _send(context, heartbeat_of(context, disk_free_bytes=disk.free_bytes))
        await asyncio.sleep(_CLOSEST_S)
        with suppress(TimeoutError):
            async with asyncio.timeout(PERIOD_S - _CLOSEST_S):
                await context.beat.wait()
        context.beat.clear()


async def say_left(context: RoleContext, *, error: str = "") -> None:
    """The last heartbeat of this process: it holds nothing more, and nobody need wait for it.

    Args:
        error: Why the role ends, if it fails.
    """
    beat = heartbeat_of(context)
    last = {"state": LEFT, "rollout_ids": (), "error": short(error)}
    await _send(context, beat.model_copy(update=last))


async def _send(context: RoleContext, beat: Heartbeat) -> None:
    from infra.amqp.codec import encode
    from infra.amqp.message import Outgoing

    if context.exporter is not None:
        context.exporter.hear_beat(beat)
    headers = {"run_id": beat.run_id}
    envelope, body = encode(
        beat, app_id=context.app_id, correlation_id=context.worker, headers=headers
    )
    await context.broker.emit(
        Outgoing(exchange="events", routing_key="heartbeat", envelope=envelope, body=body)
    )


def heartbeat_of(context: RoleContext, *, disk_free_bytes: int | None = None) -> Heartbeat:
    """The heartbeat to send now."""
    waiting_for, waiting_s = context.waits.current()
    told = context.describe() if context.describe is not None else {}
    counters = _process_counters(context, disk_free_bytes)
    fields = {
        "run_id": context.known_run_id or "",
        "role": context.role,
        "worker": context.worker,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "state": _state(context, waiting_s),
        "waiting_for": waiting_for,
        "waiting_s": round(waiting_s, 3),
        "metrics_port": context.exporter.port if context.exporter is not None else 0,
        "before": _before(counters.up_s),
        **told,
        "counters": {**counters.as_floats(), **told.get("counters", {})},
    }
    return Heartbeat.model_validate(fields)


def _process_counters(context: RoleContext, disk_free_bytes: int | None) -> ProcessCounters:
    counters = ProcessCounters(
        num_threads=threading.active_count(),
        num_blocks=sys.getallocatedblocks(),
        up_s=round(time.monotonic() - _STARTED, 1),
        disk_free_bytes=disk_free_bytes,
    )
    with suppress(RuntimeError):  # no loop runs here
        counters.num_tasks = len(asyncio.all_tasks())
    with suppress(OSError):  # another system than Linux
        counters.num_files = sum(1 for _ in Path("/proc/self/fd").iterdir())
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        counters.rss_bytes = pages * os.sysconf("SC_PAGE_SIZE")
    return counters


def _before(up_s: float) -> str:
    """While it is news."""
    return short(os.environ.get(BEFORE_VARIABLE, "")) if up_s < _NEWS_S else ""


def _state(context: RoleContext, waiting_s: float) -> str:
    if context.stop.is_set():
        return "leaving"
    if context.known_run_id is None:
        return "starting"
    if context.run_state is not None and not context.admits:
        return context.run_state.wanted.value
    return "waiting" if waiting_s >= context.config.deadlines.warn_after else "running"
