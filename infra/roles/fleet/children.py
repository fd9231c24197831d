"""Role processes that `up` starts: each in a group of its own, none outlives us."""

import logging
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from infra.roles.fleet.processes import start_child

logger = logging.getLogger(__name__)

_GONE_S = 10.0


class RoleProcess:
    """One role as a child process that writes to its own log, a new one at each start.

    Start it from the main thread: Linux ends it when the thread that forked it ends.

    Args:
        role: Which one.
        name: Unique in the run.
        argv: Its command.
        log: Of its first start; that of the second is `<stem>.2.log`.
        at_first: Further words of the first start.
        again: Further words of every later one.
    """

    def __init__(
        self,
        role: str,
        name: str,
        argv: Sequence[str],
        *,
        log: Path,
        at_first: Sequence[str] = (),
        again: Sequence[str] = (),
    ) -> None:
        self.role = role
        self.name = name
        self.log = log
        self._argv = list(argv)
        self._at_first, self._again = list(at_first), list(again)
        self._process: subprocess.Popen[bytes] | None = None
        self._first_log, self._starts = log, 0
        self._given_up = False

    def start(self, env: Mapping[str, str]) -> None:
        """Start it, the first time or again.

        Raises:
            OSError: There is no room for another process.
        """
        words = self._at_first if self._process is None else self._again
        self._given_up = False
        self._starts += 1
        if self._starts > 1:
            first = self._first_log
            self.log = first.with_name(f"{first.stem}.{self._starts}{first.suffix}")
        self._process = start_child([*self._argv, *words], env=env, log=self.log)

    @property
    def pid(self) -> int:
        """Process id, and id of its group."""
        assert self._process is not None
        return self._process.pid

    def exit_code(self) -> int | None:
        """None while it runs; negative for the signal that ended it, or should have."""
        assert self._process is not None
        code = self._process.poll()
        return -signal.SIGKILL if code is None and self._given_up else code

    def terminate(self) -> None:
        """SIGTERM: hand over and leave."""
        if self.exit_code() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL for it and whatever is left of its group; waits until it is gone.

        One that the kernel does not let go (a dead network disk, say) is given up.
        """
        assert self._process is not None
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        try:
            self._process.wait(_GONE_S)
        except subprocess.TimeoutExpired:
            self._given_up = True
            logger.warning("%s (process %d) does not end, even killed", self.name, self.pid)

    def last_lines(self, count: int = 12) -> list[str]:
        """The end of its log."""
        try:
            text = self.log.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
        return [line for line in text.splitlines() if line.strip()][-count:]


def exit_words(code: int) -> str:
    """`exit code 3`, or `killed by SIGKILL`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
