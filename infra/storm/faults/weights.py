"""The newest weight file is damaged as soon as it is published.

Recovered: every rollout worker serves a newer version than the damaged one.
"""

import asyncio
import os
import random
from collections.abc import Callable
from pathlib import Path

from infra.storm.schedule import Planned, role_of
from infra.storm.world import RECOVERY_TIMEOUT_S, Outcome, World
from infra.weights.manifest import Manifests
from schemas.control import WeightsPublished

_APPEAR_S = 60.0
_LOOK_S = 0.003


async def truncate(world: World, fault: Planned) -> Outcome | None:
    """It ends early."""
    return await _damage(world, fault, truncate_file)


async def flip(world: World, fault: Planned) -> Outcome | None:
    """One of its bits is flipped."""
    return await _damage(world, fault, flip_bit)


def truncate_file(path: Path, chance: random.Random) -> str:
    """Cut a file short, in place; says where."""
    size = path.stat().st_size
    kept = chance.randrange(size)
    os.truncate(path, kept)
    return f"{kept} of {size} bytes left"


def flip_bit(path: Path, chance: random.Random) -> str:
    """Flip one bit of a file, in place; says where."""
    place = chance.randrange(path.stat().st_size)
    with path.open("r+b") as file:
        file.seek(place)
        value = file.read(1)[0]
        file.seek(place)
        file.write(bytes((value ^ 1 << chance.randrange(8),)))
    return f"byte {place}"


async def _damage(
    world: World, fault: Planned, do: Callable[[Path, random.Random], str]
) -> Outcome | None:
    published = await _next_published(world)
    if published is None:
        return None
    began = asyncio.get_running_loop().time()
    chance = random.Random(fault.seed)
    file = chance.choice(published.files)
    where = do(world.folder.weights(world.config) / published.folder / file.name, chance)
    workers = [name for name in world.processes if role_of(name) == "rollout"]
    refused = _refusals(world, workers)

    def healed() -> bool:
        seen = [world.watch.latest.get(name) for name in workers]
        return all(beat is not None and beat.version > published.version for beat in seen)

    survived = await world.watch.until(healed, RECOVERY_TIMEOUT_S)
    bitten = _refusals(world, workers) - refused
    return Outcome(
        survived=survived,
        target=f"v{published.version}/{file.name}",
        detail=f"{where}; refused {max(0, bitten)} times",
        recovery_s=asyncio.get_running_loop().time() - began if survived else None,
    )


async def _next_published(world: World) -> WeightsPublished | None:
    """The next version, a few milliseconds after its manifest appears."""
    manifests = Manifests(world.folder.weights(world.config) / "manifests")
    known = max(manifests.versions(), default=-1)
    newest = known

    def appeared() -> bool:
        nonlocal newest
        newest = max(manifests.versions(), default=-1)
        return newest > known

    if not await world.watch.until(appeared, _APPEAR_S, every_s=_LOOK_S):
        return None
    return manifests.read(newest)


def _refusals(world: World, workers: list[str]) -> int:
    seen = [world.watch.latest.get(name) for name in workers]
    return int(sum(beat.counters.get("weights_refused", 0.0) for beat in seen if beat))
