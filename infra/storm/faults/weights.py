"""A weight file is damaged between its last byte and its manifest, so that everybody who is told
of it finds it damaged.

Recovered: every rollout worker serves a newer version than the damaged one. That none ever served
that one is found by the judge, in what was sampled.
"""

import asyncio
import contextlib
import os
import random
from collections.abc import Callable
from pathlib import Path

from infra.storm.schedule import Planned, role_of
from infra.storm.world import RECOVERY_TIMEOUT_S, Outcome, World
from infra.weights.manifest import Manifests

_LOOK_S = 0.002
_NAMED_S = 5.0
"""Between a version's last byte and its manifest, at most: else its trainer has died."""


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
    loop = asyncio.get_running_loop()
    chance, deadline = random.Random(fault.seed), loop.time() + RECOVERY_TIMEOUT_S
    while (found := await _next_version(world, deadline - loop.time())) is not None:
        began = loop.time()
        try:
            file = chance.choice(sorted(found.iterdir()))
            where = do(file, chance)
        except (OSError, IndexError):
            continue
        version = version_of(found.name)
        if not await _in_time(world, found):
            continue
        survived = await world.watch.until(_healed(world, version), RECOVERY_TIMEOUT_S)
        return Outcome(
            survived=survived,
            target=f"v{version}/{file.name}",
            detail=f"{where}; refused {_refusals(world, version)} times",
            recovery_s=loop.time() - began if survived else None,
        )
    return None


async def _in_time(world: World, folder: Path) -> bool:
    """Whether nobody could have read the version before; and whether it is published at all."""
    manifests, version = Manifests(folder.parent / "manifests"), version_of(folder.name)

    def named() -> bool:
        found = manifests.read(version)
        return found is not None and found.folder == folder.name

    return not named() and await world.watch.until(named, _NAMED_S)


def _healed(world: World, version: int) -> Callable[[], bool]:
    workers = [name for name in world.processes if role_of(name) == "rollout"]

    def healed() -> bool:
        seen = [world.watch.latest.get(name) for name in workers]
        return all(beat is not None and beat.version > version for beat in seen)

    return healed


async def _next_version(world: World, timeout_s: float) -> Path | None:
    """Folder of the next version, a few milliseconds after it appeared."""
    store = world.folder.weights(world.config)
    known = {path.name for path in _versions(store)}
    fresh: list[Path] = []

    def appeared() -> bool:
        fresh.extend(path for path in _versions(store) if path.name not in known)
        return bool(fresh)

    await world.watch.until(appeared, timeout_s, every_s=_LOOK_S)
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
