"""Processes that tests start: none outlives its test, nor a test run that is killed."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from infra.roles.fleet.processes import end_all

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
_started: list["subprocess.Popen[str]"] = []


def popen(argv: Sequence[str], **options: Any) -> "subprocess.Popen[str]":
    """Start a process that ends with the test. Call it from the main thread."""
    process = subprocess.Popen(
        list(argv), text=True, stdin=subprocess.DEVNULL, preexec_fn=_die_with_us, **options
    )
    _started.append(process)
    return process


@pytest.fixture(autouse=True)
def _end_processes() -> Iterator[None]:
    """End what the test started and left running, whatever the test came to."""
    yield
    while _started:
        process = _started.pop()
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGSTOP)  # so that it starts nothing meanwhile
            end_all(process.pid)
            process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _die_with_us() -> None:
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
