"""Heartbeats: what a role is doing, every two seconds, to whoever listens on `events`."""

import asyncio
import os
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path

from infra.roles.context import RoleContext
from schemas.control import Heartbeat

PERIOD_S = 2.0
LEFT = "left"
"""State of a process's last heartbeat."""


async def send_heartbeats(context: RoleContext) -> None:
    """Send until cancelled. Unconfirmed and transient: a lost one is followed by the next."""
    while True:
        await _send(context, heartbeat_of(context))
        await asyncio.sleep(PERIOD_S)


async def say_left(context: RoleContext) -> None:
    """The last heartbeat of this process: it holds nothing more, and nobody need wait for it."""
    beat = heartbeat_of(context)
    await _send(context, beat.model_copy(update={"state": LEFT, "rollout_ids": ()}))


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


def heartbeat_of(context: RoleContext) -> Heartbeat:
    """The heartbeat to send now."""
    waiting_for, waiting_s = context.waits.current()
    told = context.describe() if context.describe is not None else {}
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
        **told,
        "counters": {**_process_counters(), **told.get("counters", {})},
    }
    return Heartbeat.model_validate(fields)


def _process_counters() -> dict[str, float]:
    """What must not grow with time, whatever the role: a leak shows here first.

    `num_blocks` are Python's own allocations, which tell of a leak long before the resident size.
    """
    counters = {
        "num_threads": threading.active_count(),
        "num_blocks": sys.getallocatedblocks(),
    }
    with suppress(RuntimeError):  # no loop runs here
        counters["num_tasks"] = len(asyncio.all_tasks())
    with suppress(OSError):  # another system than Linux
        counters["num_files"] = sum(1 for _ in Path("/proc/self/fd").iterdir())
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        counters["rss_bytes"] = pages * os.sysconf("SC_PAGE_SIZE")
    return {name: float(value) for name, value in counters.items()}


def _state(context: RoleContext, waiting_s: float) -> str:
    if context.stop.is_set():
        return "leaving"
    if context.known_run_id is None:
        return "starting"
    if context.run_state is not None and not context.admits:
        return context.run_state.wanted.value
    return "waiting" if waiting_s >= context.config.deadlines.warn_after else "running"
