"""Stands between the worker and its server, so that the server ends when the worker does.

    worker --pipe--> keeper --starts--> server, in a session of its own

The worker writes nothing: the pipe ends when the worker lets go of it or is killed, SIGKILL
included, and then every process of the server's group is ended. Run as a file, imports nothing of
ours, so that it costs little.
"""

import contextlib
import os
import selectors
import signal
import subprocess
import sys

_GLANCE_S = 0.2
_GRACE_S = 4.0
"""Between SIGTERM to the server and SIGKILL to all of its group."""


def main(command: list[str]) -> int:
    """Keep a server until standard input ends; it says what it says where we do.

    Args:
        command: Starts the server.

    Returns:
        The exit code of the server, as a shell would give it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    waiting = selectors.DefaultSelector()
    waiting.register(sys.stdin.buffer, selectors.EVENT_READ)
    while server.poll() is None and not waiting.select(_GLANCE_S):
        pass
    with contextlib.suppress(ProcessLookupError):
        if server.poll() is None:
            os.kill(server.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(_GRACE_S)
        os.killpg(server.pid, signal.SIGKILL)
    code = server.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
