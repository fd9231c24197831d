"""The broker is killed, stopped, wiped, or has a memory alarm.

Recovered: every role has worked again since (see `Watch.working_again`). The next fault of the
broker waits for that.
"""

import asyncio
import logging
import shutil

from infra.amqp.errors import LocalBrokerFailed
from infra.storm.schedule import Planned
from infra.storm.world import Outcome, World

logger = logging.getLogger(__name__)

_START_S = 120.0
_LOW, _NORMAL = "1MB", "2GB"


async def kill(world: World, fault: Planned) -> Outcome | None:
    """SIGKILL, then a start on the same data."""
    return await _down(world, wipe=False, clean=False)


async def term(world: World, fault: Planned) -> Outcome | None:
    """An orderly stop, then a start on the same data."""
    return await _down(world, wipe=False, clean=True)


async def wipe(world: World, fault: Planned) -> Outcome | None:
    """SIGKILL, its data deleted, then a start on nothing."""
    return await _down(world, wipe=True, clean=False)


async def alarm(world: World, fault: Planned) -> Outcome | None:
    """The memory limit is set below what is used, for a while: publishers are blocked."""
    loop = asyncio.get_running_loop()
    async with world.broker_lock:
        began = loop.time()
        await asyncio.to_thread(world.node.control, "set_vm_memory_high_watermark", *_to(_LOW))
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            await asyncio.to_thread(
                world.node.control, "set_vm_memory_high_watermark", *_to(_NORMAL)
            )
        ended = loop.time()
        recovery = await world.recovery_s(world.processes, began=ended)
    return Outcome(survived=recovery is not None, seconds=ended - began, recovery_s=recovery)


async def _down(world: World, *, wipe: bool, clean: bool) -> Outcome:
    loop = asyncio.get_running_loop()
    async with world.broker_lock:
        began = loop.time()
        try:
            await asyncio.to_thread(_again, world, wipe, clean)
        except LocalBrokerFailed as error:
            return Outcome(survived=False, detail=str(error))
        up = loop.time()
        recovery = await world.recovery_s(world.processes, began=began)
    return Outcome(
        survived=recovery is not None,
        seconds=up - began,
        detail=f"back after {up - began:.1f} s",
        recovery_s=recovery,
    )


def _again(world: World, wipe: bool, clean: bool) -> None:
    node, url = world.node, world.node.url
    if clean:
        node.stop()
    else:
        node.kill()
    if wipe:
        shutil.rmtree(node.folder / "mnesia")
        (node.folder / "streams-settled").unlink(missing_ok=True)
    if node.start(_START_S) != url:
        raise LocalBrokerFailed("another process took the broker's port while it was away")


def _to(limit: str) -> tuple[str, str]:
    return "absolute", limit
