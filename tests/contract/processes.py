"""Which processes a process has started."""

import os
import time
from collections.abc import Collection
from pathlib import Path

_HELPERS = (b"resource_tracker", b"forkserver")


def children(parent: int | None = None) -> set[int]:
    """Living direct children, without Python's own helpers, which end with their parent."""
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, ppid = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:2]
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        ours = int(ppid) == (parent or os.getpid()) and state != "Z"
        if ours and not any(helper in command for helper in _HELPERS):
            found.add(int(entry.name))
    return found


def descendants(parent: int | None = None, *, apart_from: Collection[int] = ()) -> set[int]:
    """Living children, their children, and so on; of those apart, none of their children either:
    a broker node of the tests may start a helper at any time."""
    found = children(parent).difference(apart_from)
    return found.union(*(descendants(child) for child in found))


def ends(pid: int, *, within_s: float) -> bool:
    """Whether a process is gone before the deadline."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return True
        if stat.rsplit(")", 1)[1].split()[0] == "Z":
            return True
        time.sleep(0.1)
    return False
