"""Memory of a process and everything that it has started, over time."""

import threading
import time
from dataclasses import dataclass
from pathlib import Path

_PERIOD_S = 0.01


@dataclass(frozen=True, slots=True)
class Sample:
    """Bytes at one moment."""

    at: float
    """Seconds, monotonic."""
    mapped: int
    """Proportional set size of all processes, without what they map of shared memory."""
    kept: int
    """Shared memory: what lies in the folder, hard links counted once."""

    @property
    def total(self) -> int:
        """Memory that would be free without these processes; what is mapped from the folder counts
        once."""
        return self.mapped + self.kept


class MemoryWatch:
    """Samples in a thread of its own, as a context.

    Args:
        pid: Of the first process.
        folder: In shared memory, where it keeps weights.
    """

    def __init__(self, pid: int, folder: Path) -> None:
        self._pid = pid
        self._folder = folder
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.samples: list[Sample] = []

    def __enter__(self) -> "MemoryWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def peak(self, since: float) -> Sample:
        """The sample with the largest total after a moment."""
        return max(
            (sample for sample in self.samples if sample.at >= since),
            key=lambda sample: sample.total,
        )

    def median(self, since: float) -> Sample:
        """The sample in the middle after a moment, by total."""
        found = sorted(
            (sample for sample in self.samples if sample.at >= since),
            key=lambda sample: sample.total,
        )
        return found[len(found) // 2]

    def _run(self) -> None:
        while not self._over.wait(_PERIOD_S):
            self.samples.append(self._sample())

    def _sample(self) -> Sample:
        families = [_smaps(pid) for pid in _family(self._pid)]
        mapped = sum(told.get("Pss", 0) - told.get("Pss_Shmem", 0) for told in families)
        return Sample(time.monotonic(), mapped, _size(self._folder))


def _smaps(pid: int) -> dict[str, int]:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return {}
    return {line.split(":")[0]: 1024 * int(line.split()[1]) for line in lines}


def _family(pid: int) -> list[int]:
    found, new = [pid], [pid]
    while new:
        children = []
        for parent in new:
            for path in Path(f"/proc/{parent}/task").glob("*/children"):
                try:
                    children += [int(child) for child in path.read_text().split()]
                except OSError:
                    continue
        found += children
        new = children
    return found


def _size(folder: Path) -> int:
    seen: dict[int, int] = {}
    try:
        for path in folder.rglob("*"):
            told = path.lstat()
            seen[told.st_ino] = 512 * told.st_blocks
    except OSError:
        pass
    return sum(seen.values())
