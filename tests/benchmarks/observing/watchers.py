"""Who watches: a monitor on a terminal of its own, and the scraper."""

import contextlib
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Collection
from pathlib import Path

FRONT_DOOR = Path(__file__).resolve().parents[3] / "run.py"


class Watchers:
    """Watch a run until they are stopped.

    Args:
        folder: Of the run.
        parts: Which of `monitor` and `prometheus` there are.
    """

    def __init__(self, folder: Path, parts: Collection[str]) -> None:
        master, terminal = pty.openpty()
        commands = {
            "monitor": [str(FRONT_DOOR), "monitor", str(folder)],
            "prometheus": ["-m", "tests.benchmarks.observing.scraper", str(folder)],
        }
        self._processes = [
            subprocess.Popen(
                [sys.executable, *command],
                stdin=terminal,
                stdout=terminal,
                stderr=terminal,
                env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "50"},
            )
            for part, command in commands.items()
            if part in parts
        ]
        os.close(terminal)
        self.drawn = 0
        """Bytes that the monitor has drawn."""
        self._reading = threading.Thread(target=self._read, args=(master,), daemon=True)
        self._reading.start()

    @property
    def pids(self) -> list[int]:
        """Of both."""
        return [process.pid for process in self._processes]

    def stop(self) -> None:
        """End them."""
        for process in self._processes:
            process.kill()
            process.wait()
        self._reading.join(10)

    def _read(self, master: int) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone
            while data := os.read(master, 65_536):
                self.drawn += len(data)
        os.close(master)
