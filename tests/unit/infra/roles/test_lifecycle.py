"""Errors become one line and an exit code."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from infra.roles.errors import BrokerUnreachable, ConfigError, ExitCode
from infra.roles.lifecycle import report, worker_name


def test_our_errors_are_one_line_with_advice(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert report(ConfigError("bad", hint="fix it")) is ExitCode.USAGE
    assert [record.getMessage() for record in caplog.records] == ["bad\n  -> fix it"]
    assert caplog.records[0].exc_info is None


def test_a_bug_is_named_with_its_place_and_traceback(caplog: pytest.LogCaptureFixture) -> None:
    try:
        _ = [][0]
    except IndexError as error:
        assert report(error) is ExitCode.FAILED
    assert caplog.records[0].getMessage().startswith("IndexError: list index out of range (test_")
    assert caplog.records[0].exc_info is not None


def test_of_several_errors_ours_decides() -> None:
    bug = ExceptionGroup("inner", [BrokerUnreachable("gone")])
    assert report(ExceptionGroup("outer", [bug])) is ExitCode.BROKER_UNREACHABLE
    both = ExceptionGroup("outer", [KeyError("x"), ConfigError("bad")])
    assert report(both) is ExitCode.USAGE


def test_names_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WARREN_WORKER", raising=False)
    assert worker_name("rollout").startswith("rollout-")
    monkeypatch.setenv("WARREN_WORKER", "from-environment")
    assert worker_name("rollout") == "from-environment"
    assert worker_name("rollout", "given") == "given"


HANGS = """
import asyncio, sys, threading
from infra.roles import lifecycle
lifecycle._END_S = 0.2

async def stubborn():
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue

async def serving():
    left = asyncio.create_task(stubborn())
    asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
    await asyncio.sleep(0)
    return 5

sys.exit(lifecycle.run_role(serving()))
"""


def test_what_hangs_does_not_keep_the_process_from_ending() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", HANGS],
        cwd=Path(__file__).resolve().parents[4],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 5, ended.stderr
    assert "leaving without it" in ended.stderr
