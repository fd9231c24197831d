"""SIGKILL, SIGTERM and SIGSTOP of role processes.

Recovered: the process, or the one started in its place, works again (see `Watch.working_again`).
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator

from infra.storm.schedule import Planned, role_of
from infra.storm.world import Outcome, World


async def kill(world: World, fault: Planned) -> Outcome | None:
    """SIGKILL."""
    return await _signal(world, fault, signal.SIGKILL)


async def term(world: World, fault: Planned) -> Outcome | None:
    """SIGTERM: it hands over and leaves; another is started in its place."""
    return await _signal(world, fault, signal.SIGTERM)


async def freeze(world: World, fault: Planned) -> Outcome | None:
    """SIGSTOP for longer than the broker waits for a heartbeat, then SIGCONT."""
    async with _alive(world, fault.target) as process:
        if process is None:
            return None
        pid, handle = process
        _send(handle, signal.SIGSTOP)
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            _send(handle, signal.SIGCONT)
    thawed = asyncio.get_running_loop().time()
    recovery = await world.recovery_s((fault.target,), began=thawed)
    return Outcome(
        survived=recovery is not None,
        seconds=fault.seconds,
        detail=f"process {pid}",
        recovery_s=recovery,
    )


async def _signal(world: World, fault: Planned, number: signal.Signals) -> Outcome | None:
    detail = ""
    async with _alive(world, fault.target) as process:
        if process is None:
            return None
        pid, handle = process
        if number is signal.SIGKILL and role_of(fault.target) == "rollout":
            tokens = world.watch.tokens_unsaved(fault.target, pid)
            world.repeated["killed"] = world.repeated.get("killed", 0) + tokens
            detail = f"{tokens} tokens unsaved"
        began = asyncio.get_running_loop().time()
        _send(handle, number)
        if number is signal.SIGKILL:
            world.ended[fault.target] = pid
    recovery = await world.recovery_s((fault.target,), began=began, without=pid)
    return Outcome(survived=recovery is not None, detail=detail, recovery_s=recovery)


@contextlib.asynccontextmanager
async def _alive(world: World, name: str) -> AsyncIterator[tuple[int, int] | None]:
    """Wait until the process runs: its id, and a handle that no other process can inherit."""
    lock = world.trainer_lock if role_of(name) == "trainer" else contextlib.nullcontext()
    async with lock:
        if role_of(name) == "trainer":
            await world.spare_trainer()
        pid = await world.pid_of(name)
        with _opened(pid) as handle:
            yield None if handle is None else (pid, handle)


@contextlib.contextmanager
def _opened(pid: int) -> Iterator[int | None]:
    try:
        handle = os.pidfd_open(pid) if pid else None
    except ProcessLookupError:
        handle = None
    try:
        yield handle
    finally:
        if handle is not None:
            os.close(handle)


def _send(handle: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, number)
