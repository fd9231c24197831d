"""Connections are cut, black-holed or slowed, at the proxy.

Recovered: every role that was hit works again (see `Watch.working_again`).
"""

import asyncio
import contextlib
from contextlib import AbstractAsyncContextManager

from infra.storm.schedule import EVERYBODY, Planned, role_of
from infra.storm.world import Outcome, World

_BYTES_PER_S = 20_000


async def cut(world: World, fault: Planned) -> Outcome | None:
    """Every connection of the target is reset."""
    async with _links(world, fault):
        began = asyncio.get_running_loop().time()
        count = world.proxy.cut(match(fault.target))
    return await _recovered(world, fault, began, detail=f"{count} connections")


async def black_hole(world: World, fault: Planned) -> Outcome | None:
    """The target's connections stay open and carry nothing, for longer than three heartbeats."""
    async with _links(world, fault):
        with world.proxy.black_hole(match(fault.target)):
            await asyncio.sleep(fault.seconds)
    return await _recovered(world, fault, asyncio.get_running_loop().time())


async def slow(world: World, fault: Planned) -> Outcome | None:
    """The target's connections carry little for a while."""
    async with _links(world, fault):
        with world.proxy.slow(match(fault.target), bytes_per_s=_BYTES_PER_S):
            await asyncio.sleep(fault.seconds)
    return await _recovered(world, fault, asyncio.get_running_loop().time())


def _links(world: World, fault: Planned) -> AbstractAsyncContextManager[object]:
    """Those of the trainer are left alone while a second one is started: cut off, the first would
    lose its place to it, and rightly so."""
    hit = fault.target in (EVERYBODY, "trainer")
    return world.trainer_links if hit else contextlib.nullcontext()


def match(target: str) -> str:
    """What the names of a process's connections contain: `<run> <role>/<worker> <which>`."""
    return "" if target == EVERYBODY else f" {role_of(target)}/{target} "


async def _recovered(world: World, fault: Planned, began: float, *, detail: str = "") -> Outcome:
    names = world.processes if fault.target == EVERYBODY else (fault.target,)
    recovery = await world.recovery_s(names, began=began)
    return Outcome(
        survived=recovery is not None, seconds=fault.seconds, detail=detail, recovery_s=recovery
    )
