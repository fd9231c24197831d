"""Memory of a run: proportional set size of every process that belongs to it, over time."""

import json
import time
from collections.abc import Mapping
from pathlib import Path

from infra.roles.fleet.processes import descendants, process_tree

PERIOD_S = 2.0


def pss_bytes(pid: int) -> int:
    """Proportional set size: shared pages count by share. 0 when the process is gone."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


class ResourceSampler:
    """Appends to `resources.jsonl`: one line every two seconds, and one at the end.

    Args:
        path: The file.
        roots: Name -> process id, kept up to date by whoever restarts one; each counts with all
            its descendants. Whatever of ours belongs to none of them counts as `other`.
        own: Our process id.
    """

    def __init__(self, path: Path, *, roots: Mapping[str, int], own: int) -> None:
        self._path = path
        self.roots = dict(roots)
        self._own = own
        self._started = time.monotonic()
        self._next = 0.0

    def tick(self, *, now: float | None = None, force: bool = False) -> None:
        """Sample if it is time to."""
        elapsed = (time.monotonic() if now is None else now) - self._started
        if not force and elapsed < self._next:
            return
        self._next = elapsed + PERIOD_S
        record = {"elapsed_s": round(elapsed, 2), **self._sample()}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def _sample(self) -> dict[str, object]:
        tree = process_tree()
        ours = {self._own, *descendants(self._own, tree)}
        by_name: dict[str, int] = {}
        seen: set[int] = set()
        for name, root in self.roots.items():
            family = ({root, *descendants(root, tree)} & ours) - seen
            seen |= family
            by_name[name] = sum(map(pss_bytes, family))
        by_name["other"] = sum(map(pss_bytes, ours - seen))
        return {
            "pss_bytes": sum(by_name.values()),
            "num_processes": len(ours),
            "by_name": by_name,
        }
