"""A version's files are damaged between their last byte and its manifest, so that everybody who is
told of it finds it damaged. Of one that can be had in two ways, as a delta or whole, both are.

Recovered: every rollout worker serves a newer version than the damaged one. That none ever served
that one is found by the judge, in what was sampled.
"""

import asyncio
import os
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from infra.roles.errors import WarrenError
from infra.storm.schedule import Planned, role_of
from infra.storm.world import RECOVERY_TIMEOUT_S, Outcome, World
from infra.weights.files.local import LocalFiles
from infra.weights.store import WeightStore

_LOOK_S = 0.002
_GLANCE_S = 0.0005
_PARTIAL = ".partial-"
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
    store = WeightStore.at(world.folder.weights(world.config))
    chance, deadline = random.Random(fault.seed), loop.time() + RECOVERY_TIMEOUT_S
    while (folder := await _next_version(store, deadline)) is not None:
        began = loop.time()
        try:
            harmed = await asyncio.to_thread(_harm, store, folder, do, chance)
        except OSError:
            continue
        version = version_of(folder)
        if not harmed or not await _in_time(store, folder):
            continue
        survived = await world.watch.until(_healed(world, version), RECOVERY_TIMEOUT_S)
        names, places = zip(*harmed, strict=True)
        return Outcome(
            survived=survived,
            target=f"v{version}/{'+'.join(names)}",
            detail=f"{', '.join(places)}; refused {_refusals(world, version)} times",
            recovery_s=loop.time() - began if survived else None,
        )
    return None


def _harm(
    store: WeightStore, folder: str, do: Callable[[Path, random.Random], str], chance: random.Random
) -> list[tuple[str, str]]:
    """Damage a delta and a part of the whole copy, as far as there are such; names and places."""
    if isinstance(store.files, LocalFiles):
        return _harm_here(Path(store.files.where), folder, do, chance)
    names = store.files.names(folder)
    whole = [name for name in names if name.endswith(".safetensors")]
    kinds = ([name for name in names if name not in whole], whole)
    return [_harm_there(store, folder, chance.choice(kind), do, chance) for kind in kinds if kind]


def _harm_here(
    root: Path, folder: str, do: Callable[[Path, random.Random], str], chance: random.Random
) -> list[tuple[str, str]]:
    """Damage each file of a version as soon as it is there, while others are still on their way:
    between the last of them and the manifest are a few milliseconds."""
    partial, deadline = root / f"{_PARTIAL}{folder}", time.monotonic() + _NAMED_S
    harmed: dict[str, str] = {}
    while time.monotonic() < deadline:
        place = partial if partial.is_dir() else root / folder
        try:
            for path in sorted(place.iterdir()):
                if path.name not in harmed and path.stat().st_size:
                    harmed[path.name] = do(path, chance)
        except FileNotFoundError:
            if not partial.is_dir() and not (root / folder).is_dir():
                return []
            continue
        if place != partial:
            break
        time.sleep(_GLANCE_S)
    return list(harmed.items())


def _harm_there(
    store: WeightStore,
    folder: str,
    name: str,
    do: Callable[[Path, random.Random], str],
    chance: random.Random,
) -> tuple[str, str]:
    with tempfile.TemporaryDirectory() as own:
        copy = Path(own) / name
        deadline = time.monotonic() + _NAMED_S
        while not (data := store.files.read(f"{folder}/{name}")):  # on its way
            if time.monotonic() > deadline:
                raise OSError(f"{folder}/{name} stays empty")
            time.sleep(_LOOK_S)
        copy.write_bytes(data)
        where = do(copy, chance)
        store.files.write(folder, {name: (copy.read_bytes(),)})
    return name, where


async def _in_time(store: WeightStore, folder: str) -> bool:
    """Whether nobody could have read the version before; and whether it is published at all."""
    version = version_of(folder)

    def named() -> bool:
        try:
            found = store.manifest(version)
        except WarrenError:
            return False
        return found is not None and found.folder == folder

    if await asyncio.to_thread(named):
        return False
    deadline = asyncio.get_running_loop().time() + _NAMED_S
    while asyncio.get_running_loop().time() < deadline:
        if await asyncio.to_thread(named):
            return True
        await asyncio.sleep(_LOOK_S)
    return False


def _healed(world: World, version: int) -> Callable[[], bool]:
    workers = [name for name in world.processes if role_of(name) == "rollout"]

    def healed() -> bool:
        seen = [world.watch.latest.get(name) for name in workers]
        return all(beat is not None and beat.version > version for beat in seen)

    return healed


async def _next_version(store: WeightStore, deadline: float) -> str | None:
    """Folder of the next version, a few milliseconds after it appeared; None after the deadline, on
    the loop's clock."""
    known = set(await asyncio.to_thread(_versions, store))
    while asyncio.get_running_loop().time() < deadline:
        fresh = [name for name in await asyncio.to_thread(_versions, store) if name not in known]
        if fresh:
            return fresh[0]
        await asyncio.sleep(_LOOK_S)
    return None


def _versions(store: WeightStore) -> Sequence[str]:
    try:
        names = [name.removeprefix(_PARTIAL) for name in store.files.names()]
        return sorted({name for name in names if version_of(name) >= 0})
    except OSError:
        return []


def version_of(folder: str) -> int:
    """`v00000012.i3.5f0c9a1e` -> 12; -1 for anything else."""
    number = folder.partition(".")[0].removeprefix("v")
    return int(number) if folder.startswith("v") and number.isdecimal() else -1


def _refusals(world: World, version: int) -> int:
    """As the rollout workers' logs tell it."""
    said = f"version {version} cannot be read"
    logs = world.folder.latest_logs.glob("rollout-*.log")
    return sum(path.read_text(encoding="utf-8", errors="replace").count(said) for path in logs)
