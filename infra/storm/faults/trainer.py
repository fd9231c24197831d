"""What only the trainer can suffer: a rival, and a disk that takes no more."""

import asyncio
import os
import resource
import subprocess
import sys
from pathlib import Path

from infra.roles.prctl import die_with
from infra.runs.folder import RunFolder
from infra.storm.schedule import Planned
from infra.storm.world import RECOVERY_TIMEOUT_S, Outcome, World

_REFUSED_S = 180.0
_REFUSAL = "another trainer of run"
_LOG_MARGIN_BYTES = 4096


async def second(world: World, fault: Planned) -> Outcome | None:
    """Another trainer is started on the same run, which it must not get.

    Survived: it is refused because of the first one, which makes another step.
    """
    async with world.broker_lock, world.trainer_lock, world.trainer_links:
        if not await world.pid_of("trainer"):
            return None
        if await world.recovery_s(("trainer",), began=0.0) is None:
            return None
        began = asyncio.get_running_loop().time()
        code, said = await _rival(world)
    recovery = await world.recovery_s(("trainer",), began=began)
    refused = bool(code) and _REFUSAL in said
    words = "was not refused in time" if code is None else f"exit code {code}"
    return Outcome(survived=refused and recovery is not None, detail=words)


async def disk_full(world: World, fault: Planned) -> Outcome | None:
    """No file of the trainer may become larger than its journal is: its next writes fail, for real.

    Survived: it stops, and the one started in its place makes another step. The limit is one of
    the process (RLIMIT_FSIZE), so that the next trainer is free of it, as after cleaning up. It is
    set while the trainer steps: one that only begins has a smaller journal, and room in it.
    """
    loop = asyncio.get_running_loop()
    async with world.trainer_lock:
        if await world.recovery_s(("trainer",), began=0.0) is None:
            return None
        pid = await world.pid_of("trainer")
        if not pid:
            return None
        try:
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            began = loop.time()
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (_full_bytes(world.folder), hard))
        except (ProcessLookupError, ValueError):
            return None
        died = await world.watch.until(
            lambda: world.watch.fleet().get("trainer") != pid, RECOVERY_TIMEOUT_S
        )
    if not died:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
        return Outcome(survived=False, detail=f"process {pid} went on")
    recovery = await world.recovery_s(("trainer",), began=began)
    return Outcome(survived=recovery is not None, recovery_s=recovery)


def _full_bytes(folder: RunFolder) -> int:
    """So that the journal's segment cannot grow; where that leaves room, the trainer can still say
    in its log why it stops."""
    logs = folder.logs_of("trainer-1")
    room = (logs[-1].stat().st_size if logs else 0) + _LOG_MARGIN_BYTES
    segments = [path.stat() for path in folder.journal.iterdir()]
    newest = max(segments, key=lambda found: found.st_mtime_ns)
    return min(room, newest.st_size)


async def _rival(world: World) -> tuple[int | None, str]:
    """Its exit code, None when it had to be ended; and what it said."""
    log = world.own / "second-trainer.log"
    before = log.stat().st_size if log.exists() else 0
    process = _start_rival(world, log)
    try:
        await world.watch.until(lambda: process.poll() is not None, _REFUSED_S)
        return process.poll(), log.read_bytes()[before:].decode(errors="replace")
    finally:
        process.kill()
        process.wait()


def _start_rival(world: World, log: Path) -> "subprocess.Popen[bytes]":
    argv = [sys.executable, str(world.entry), "trainer", str(world.folder.config), "--resume"]
    with log.open("ab") as output:
        return subprocess.Popen(
            [*argv, "--name", "rival"],
            env=world.roles_environment(dict(os.environ)),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=die_with(os.getpid()),
        )
