"""Our own descendants: starting, finding and ending them. Never anybody else's process."""

import contextlib
import logging
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from infra.roles.prctl import die_with

_PROC = Path("/proc")


def start_child(
    argv: Sequence[str], *, env: Mapping[str, str], log: Path
) -> "subprocess.Popen[bytes]":
    """Start a process in a group of its own; what it says is appended to `log`.

    Linux ends it when the thread that calls this ends.

    Raises:
        OSError: There is no room for another process, or no such command.
    """
    with log.open("ab") as output:
        return subprocess.Popen(
            argv,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=die_with(os.getpid()),
        )


def parent_of(pid: int) -> int | None:
    """Its parent's id, or None when it is gone."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[1])


def process_tree() -> dict[int, list[int]]:
    """Parent -> children, of every process that can be seen now."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            parent = parent_of(int(entry.name))
            if parent is not None:
                children.setdefault(parent, []).append(int(entry.name))
    return children


def descendants(root: int, tree: Mapping[int, list[int]] | None = None) -> list[int]:
    """Children, their children and so on; those that ended meanwhile are missing."""
    tree = process_tree() if tree is None else tree
    found: list[int] = []
    queue = [root]
    while queue:
        children = tree.get(queue.pop(), [])
        found += children
        queue += children
    return found


def alive(pid: int) -> bool:
    """Whether it runs: neither gone nor a zombie."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def end_orphans(parent: int, *, mark: str, spare: Iterable[int] = ()) -> list[int]:
    """End what a dead role left behind: the children that `parent` adopted, with all of theirs.

    Args:
        parent: Who adopts orphans.
        mark: `NAME=value` in the environment by which the dead one's are known.
        spare: Children of `parent` that it started itself.

    Returns:
        The ids that were signalled.
    """
    tree, spared = process_tree(), set(spare)
    ended: list[int] = []
    for orphan in tree.get(parent, []):
        if orphan in spared:
            continue
        if not alive(orphan):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(orphan, os.WNOHANG)
        elif mark in environment_of(orphan):
            for pid in (orphan, *descendants(orphan, tree)):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
                    ended.append(pid)
    return ended


def environment_of(pid: int) -> list[str]:
    """`NAME=value` pairs with which it was started; empty when it is gone or somebody else's."""
    try:
        raw = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return []
    return raw.decode(errors="replace").split("\0")


def end_all(root: int, *, spare: Iterable[int] = ()) -> list[int]:
    """SIGKILL every descendant of `root`; what they leave behind meanwhile is ended too.

    Returns:
        The ids that were signalled.
    """
    spared = set(spare)
    ended: list[int] = []
    for _ in range(20):
        running = [pid for pid in descendants(root) if pid not in spared and alive(pid)]
        if not running:
            break
        for pid in running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        ended += running
        time.sleep(0.02)
    return sorted(set(ended))


def leave_at_once(code: int) -> NoReturn:
    """End this process and its descendants, whatever still runs in it."""
    end_all(os.getpid())
    logging.shutdown()
    os._exit(code)
