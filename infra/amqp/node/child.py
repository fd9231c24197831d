"""Child processes that cannot outlive us, not even when we are killed with -9."""

import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from infra.roles.prctl import die_with


class Child:
    """One child process, ended with SIGKILL by the kernel when this process ends.

    Linux sends that signal when the *thread* that forked ends, so each child has a thread of its
    own that forks it and then waits for it.
    """

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], log: Path) -> None:
        self._argv = list(argv)
        self._env = dict(env)
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._error: OSError | None = None
        self._started = threading.Event()
        self._ended = threading.Event()
        name = f"child-{Path(self._argv[0]).name}"
        threading.Thread(target=self._keep, name=name, daemon=True).start()
        self._started.wait()
        if self._error is not None:
            raise self._error

    def _keep(self) -> None:
        try:
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    self._argv,
                    env=self._env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=die_with(os.getpid()),
                )
        except OSError as error:
            self._error = error
            self._started.set()
            return
        self._started.set()
        self._process.wait()
        self._ended.set()

    @property
    def pid(self) -> int:
        """Process id, also after its end."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return not self._ended.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; False when it still runs after `timeout_s`."""
        return self._ended.wait(timeout_s)

    def stop(self, timeout_s: float) -> None:
        """SIGTERM, and SIGKILL if that did not end it in time."""
        if self.running:
            os.kill(self.pid, signal.SIGTERM)
        if not self.wait(timeout_s):
            self.kill()

    def kill(self) -> None:
        """SIGKILL, then wait until it is gone."""
        if self.running:
            os.kill(self.pid, signal.SIGKILL)
        self._ended.wait()
