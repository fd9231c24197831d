"""An event loop that stands still is noticed from outside of it."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from consumers.rollout.watchdog import Watchdog
from infra.roles.fleet.processes import alive

ROOT = Path(__file__).resolve().parents[3]


async def test_a_loop_that_goes_on_is_left_alone() -> None:
    barked = threading.Event()
    with Watchdog(10.0, on_hang=barked.set, period_s=0.01):
        for _ in range(100):
            await asyncio.sleep(0.01)
    assert not barked.is_set()


async def test_what_never_returns_is_named(caplog: pytest.LogCaptureFixture) -> None:
    barked = threading.Event()
    with Watchdog(0.05, on_hang=barked.set):
        agent_that_never_returns(barked)
    assert "the event loop has stood still" in caplog.text
    assert "in agent_that_never_returns" in caplog.text


def agent_that_never_returns(barked: threading.Event) -> None:
    assert barked.wait(20), "nobody noticed"


def test_it_ends_the_process_with_its_children() -> None:
    code = """
import asyncio, subprocess, time
from consumers.rollout.watchdog import Watchdog
child = subprocess.Popen(["sleep", "600"])
print(child.pid, flush=True)
async def main():
    with Watchdog(0.2):
        time.sleep(600)
asyncio.run(main())
"""
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    assert not alive(int(ended.stdout))
