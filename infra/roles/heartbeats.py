"""Heartbeats: what a role is doing, every two seconds, to whoever listens on `events`."""

import asyncio
import os
import socket

from infra.roles.context import RoleContext
from schemas.control import Heartbeat, Wanted

PERIOD_S = 2.0


async def send_heartbeats(context: RoleContext) -> None:
    """Send until cancelled. Unconfirmed and transient: a lost one is followed by the next."""
    from infra.amqp.codec import encode
    from infra.amqp.message import Outgoing

    while True:
        beat = heartbeat_of(context)
        headers = {"run_id": beat.run_id}
        envelope, body = encode(
            beat, app_id=context.app_id, correlation_id=context.worker, headers=headers
        )
        await context.broker.emit(
            Outgoing(exchange="events", routing_key="heartbeat", envelope=envelope, body=body)
        )
        await asyncio.sleep(PERIOD_S)


def heartbeat_of(context: RoleContext) -> Heartbeat:
    """The heartbeat to send now."""
    waiting_for, waiting_s = context.waits.current()
    fields = {
        "run_id": context.known_run_id or "",
        "role": context.role,
        "worker": context.worker,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "state": _state(context, waiting_s),
        "waiting_for": waiting_for,
        "waiting_s": round(waiting_s, 3),
        **(context.describe() if context.describe is not None else {}),
    }
    return Heartbeat.model_validate(fields)


def _state(context: RoleContext, waiting_s: float) -> str:
    if context.stop.is_set():
        return "leaving"
    if context.known_run_id is None:
        return "starting"
    if context.run_state is not None and context.run_state.wanted is Wanted.PAUSED:
        return "paused"
    return "waiting" if waiting_s >= context.config.deadlines.warn_after else "running"
