"""One look at a run: every process from /proc, the broker's own counts, the run folder's sizes."""

import asyncio
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from infra.amqp.admin import Management
from infra.amqp.topology import RECORDING, WORK_QUEUES
from infra.roles.fleet.processes import descendants
from infra.runs.folder import RunFolder
from infra.storm.watch import Watch

Sample = dict[str, dict[str, float]]
"""Who -> quantity -> value."""

_NODE = "beam.smp"
_FROM_HEARTBEATS = ("num_tasks", "num_blocks")
SETTLED = "num_settled"
"""Messages that a rollout worker was done with: rollouts finished, and snapshots published."""
_SETTLING = ("rollouts_finished", "snapshots_published")
_FRESH_S = 30.0
"""A heartbeat older than that says nothing of now."""


def process_sizes(pid: int) -> dict[str, float]:
    """Memory, open files and threads of a process; empty when it is gone."""
    proc = Path(f"/proc/{pid}")
    try:
        memory = _rollup(proc)
        return {
            "rss_bytes": memory["Rss"],
            "uss_bytes": memory["Private_Clean"] + memory["Private_Dirty"],
            "pss_bytes": memory["Pss"],
            "num_files": float(sum(1 for _ in (proc / "fd").iterdir())),
            "num_threads": float(sum(1 for _ in (proc / "task").iterdir())),
        }
    except (OSError, KeyError):
        return {}


def _rollup(proc: Path) -> dict[str, float]:
    fields: dict[str, float] = {}
    for line in (proc / "smaps_rollup").read_text(encoding="ascii", errors="replace").splitlines():
        name, _, rest = line.partition(":")
        if rest.endswith(" kB"):
            fields[name] = 1024.0 * float(rest.split()[0])
    return fields


def node_pid(up: int) -> int | None:
    """The Erlang virtual machine among what `up` started."""
    for pid in descendants(up):
        try:
            if Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip() == _NODE:
                return pid
        except OSError:
            continue
    return None


def folder_bytes(folder: RunFolder) -> dict[str, float]:
    """Sizes in the run folder, by what lies right in it."""
    sizes: dict[str, float] = {}
    for found, _, names in os.walk(folder.root):  # a folder that is gone meanwhile is passed over
        for path in (Path(found) / name for name in names):
            with suppress(OSError):
                top = path.relative_to(folder.root).parts[0]
                key = f"{top.removesuffix('.jsonl')}_bytes"
                sizes[key] = sizes.get(key, 0.0) + path.stat().st_size
    return sizes


def _told(counters: Mapping[str, float]) -> dict[str, float]:
    """What a heartbeat says of a process."""
    told = {key: counters[key] for key in _FROM_HEARTBEATS if key in counters}
    if all(key in counters for key in _SETTLING):
        told[SETTLED] = sum(counters[key] for key in _SETTLING)
    return told


class Eyes:
    """Everything that is looked at.

    Args:
        up: Process id of `run.py up`.
        folder: Of the run.
        run: Its name, which its queues carry.
        management: Of its broker.
        watch: Hears its heartbeats.
    """

    def __init__(
        self, *, up: int, folder: RunFolder, run: str, management: Management, watch: Watch
    ) -> None:
        self._up = up
        self._folder = folder
        self._run = run
        self._management = management
        self._watch = watch
        self._node = node_pid(up)

    def fleet(self) -> Mapping[str, int]:
        """Name -> process id of the roles."""
        return self._watch.fleet()

    async def look(self) -> Sample:
        """A sample.

        Raises:
            ManagementUnreachable: The broker does not answer.
        """
        sample: Sample = {"up": process_sizes(self._up)}
        for name, pid in self.fleet().items():
            sample[name] = process_sizes(pid)
            seen = self._watch.latest.get(name)
            if seen is not None and seen.pid == pid and time.monotonic() - seen.at < _FRESH_S:
                sample[name] |= _told(seen.counters)
        sample["broker"] = await asyncio.to_thread(self._broker)
        sample["folder"] = await asyncio.to_thread(folder_bytes, self._folder)
        return sample

    def _broker(self) -> dict[str, float]:
        sizes = {} if self._node is None else process_sizes(self._node)
        sizes |= {f"num_{name}": float(n) for name, n in self._management.objects().items()}
        for queue in self._management.queues(self._run):
            depth = float(queue.num_ready + queue.num_unacked)
            if queue.name in WORK_QUEUES:
                sizes[f"{queue.name} depth"] = depth
            elif queue.name != RECORDING.name:
                sizes["others depth"] = sizes.get("others depth", 0.0) + depth
        return sizes
