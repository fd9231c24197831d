"""A weight file is damaged between its last byte and its manifest, so that everybody who is told
of it finds it damaged.

Recovered: every rollout worker serves a newer version than the damaged one.
"""

import asyncio
import contextlib
import os
import random
from collections.abc import Callable
from pathlib import Path

from infra.storm.schedule import Planned, role_of
from infra.storm.world import RECOVERY_TIMEOUT_S, Outcome, World

_LOOK_S = 0.002


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
    folder = await _next_version(world)
    if folder is None:
        return None
    began = asyncio.get_running_loop().time()
    chance = random.Random(fault.seed)
    try:
        file = chance.choice(sorted(folder.iterdir()))
        where = do(file, chance)
    except (OSError, IndexError):
        return None
    version = version_of(folder.name)
    workers = [name for name in world.processes if role_of(name) == "rollout"]

    def healed() -> bool:
        seen = [world.watch.latest.get(name) for name in workers]
        return all(beat is not None and beat.version > version for beat in seen)

    survived = await world.watch.until(healed, RECOVERY_TIMEOUT_S)
    return Outcome(
        survived=survived,
        target=f"v{version}/{file.name}",
        detail=f"{where}; refused {_refusals(world, version)} times",
        recovery_s=asyncio.get_running_loop().time() - began if survived else None,
    )


async def _next_version(world: World) -> Path | None:
    """Folder of the next version, a few milliseconds after it appeared."""
    store = world.folder.weights(world.config)
    known = {path.name for path in _versions(store)}
    fresh: list[Path] = []

    def appeared() -> bool:
        fresh.extend(path for path in _versions(store) if path.name not in known)
        return bool(fresh)

    await world.watch.until(appeared, RECOVERY_TIMEOUT_S, every_s=_LOOK_S)
    return fresh[0] if fresh else None


def _versions(store: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return [path for path in store.iterdir() if version_of(path.name) >= 0]
    return []


def version_of(folder: str) -> int:
    """`v00000012.i3.5f0c9a1e` -> 12; -1 for anything else."""
    number = folder.partition(".")[0].removeprefix("v")
    return int(number) if folder.startswith("v") and number.isdecimal() else -1


def _refusals(world: World, version: int) -> int:
    """As the rollout workers' logs tell it."""
    said = f"version {version} cannot be read"
    logs = world.folder.logs.glob("rollout-*.log")
    return sum(path.read_text(encoding="utf-8", errors="replace").count(said) for path in logs)
