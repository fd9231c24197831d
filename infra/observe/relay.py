"""Following log files: what a role writes appears on the screen of whoever started it."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from infra.observe.harmless import harmless
from infra.observe.logs import ALERTS, DIM, RESET, alert_level, wants_colour


class LogTail:
    """New whole lines of a growing file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def lines(self, *, last: bool = False) -> Iterator[str]:
        """Lines written since the last call; with `last`, an unfinished one too."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return
        self._offset += len(data)
        *whole, self._rest = (self._rest + data).split(b"\n")
        if last and self._rest:
            whole.append(self._rest)
            self._rest = b""
        for line in whole:
            yield line.decode("utf-8", errors="replace")


class Relay:
    """Shows everything that one role logs, and of the others what needs attention."""

    def __init__(self, *, everything_of: str, stream: TextIO | None = None) -> None:
        self._loud = everything_of
        self._stream = stream or sys.stdout
        self._colour = wants_colour(self._stream)
        self._tails: dict[str, tuple[str, LogTail]] = {}

    def follow(self, name: str, role: str, log: Path) -> None:
        """Show a log from its beginning, and of the one that it follows what is left."""
        if name in self._tails:
            self._show(*self._tails[name], last=True)
        self._tails[name] = (role, LogTail(log))

    def pump(self, *, last: bool = False) -> None:
        """Show what is new."""
        for role, tail in self._tails.values():
            self._show(role, tail, last=last)

    def _show(self, role: str, tail: LogTail, *, last: bool) -> None:
        shown = False
        for line in tail.lines(last=last):
            if role == self._loud or alert_level(line):
                self._stream.write(self._painted(harmless(line)) + "\n")
                shown = True
        if shown:
            self._stream.flush()

    def _painted(self, line: str) -> str:
        if not self._colour:
            return line
        level = alert_level(line)
        head, gap, rest = line.partition("  ")
        if not gap:
            return line
        return f"{DIM}{head}{gap}{RESET}{ALERTS[level] + rest + RESET if level else rest}"
