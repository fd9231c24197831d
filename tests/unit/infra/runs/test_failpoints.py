"""Fail points: silent unless armed, fatal at the very time that was asked for."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from infra.roles.errors import ConfigError
from infra.runs import failpoints
from infra.runs.failpoints import FailPoint, Killer, halves, reach

ROOT = Path(__file__).resolve().parents[4]
LOOP = """
from infra.runs.failpoints import FailPoint, reach
for number in range(4):
    reach(FailPoint.ACK)
    print(number, flush=True)
    reach(FailPoint.STEP_TAKEN)
"""


def run(variable: str) -> subprocess.CompletedProcess[str]:
    """A process that reaches two points four times each."""
    env = {**os.environ, failpoints.VARIABLE: variable}
    return subprocess.run(
        [sys.executable, "-c", LOOP], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(("variable", "lines"), [("step.taken:3", 3), ("ack:3", 2), ("ack", 0)])
def test_the_process_ends_where_it_was_told_to(variable: str, lines: int) -> None:
    done = run(variable)
    assert done.returncode == -signal.SIGKILL
    assert done.stdout.split() == [str(number) for number in range(lines)]


@pytest.mark.parametrize("variable", ["", "ack:9", "ended"])
def test_without_reaching_it_nothing_happens(variable: str) -> None:
    done = run(variable)
    assert done.returncode == 0
    assert done.stdout.split() == ["0", "1", "2", "3"]


@pytest.mark.parametrize("text", ["nowhere:1", "ack:0", "ack:-1", "ack:x", "ack:1:2"])
def test_a_point_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="names no fail point"):
        Killer.parse(text)


def test_a_torn_write_has_half_of_the_bytes() -> None:
    written: list[bytes] = []
    seen: list[tuple[FailPoint, bytes]] = []
    assert list(halves(FailPoint.JOURNAL_TORN, b"abcde")) == [b"abcde"]
    failpoints.listen(lambda point: seen.append((point, b"".join(written))))
    try:
        for part in halves(FailPoint.JOURNAL_TORN, b"abcde"):
            written += [part]
        reach(FailPoint.ACK)
    finally:
        failpoints.listen(None)
    assert b"".join(written) == b"abcde"
    assert seen == [(FailPoint.JOURNAL_TORN, b"ab"), (FailPoint.ACK, b"abcde")]
