"""The front door: what it says when something is not there."""

import argparse
import sys
import types
from pathlib import Path

import pytest

from infra.roles.command.cli import main
from infra.roles.errors import ConfigError


def tool(monkeypatch: pytest.MonkeyPatch, missing: str) -> dict[str, str]:
    """A command whose module needs a package that is not installed."""
    module = types.ModuleType("invented_tool")

    def run(_options: argparse.Namespace) -> int:
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    module.run = run  # type: ignore[attr-defined]
    module.add_arguments = lambda parser: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "invented_tool", module)
    return {"ledger": "invented_tool"}


def test_a_python_without_our_packages_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tools = tool(monkeypatch, "pika.adapters")
    assert main(["ledger"], roles={}, tools=tools, entry=Path("run.py")) == 2
    said = capsys.readouterr().err
    assert "has no package 'pika.adapters'" in said
    assert "activate" in said


def test_no_error_steers_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tools = tool(monkeypatch, "")

    def run(_options: argparse.Namespace) -> int:
        raise ConfigError("no queue takes \x1b[2J\u202e", hint="read \x9b31m")

    monkeypatch.setattr(sys.modules["invented_tool"], "run", run)
    assert main(["ledger"], roles={}, tools=tools, entry=Path("run.py")) == 2
    assert capsys.readouterr().err == ("no queue takes \\x1b[2J\\u202e\n  -> read \\x9b31m\n")


def test_a_module_of_ours_that_is_missing_is_a_fault_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tools = tool(monkeypatch, "infra.observe.nothing")
    with pytest.raises(ModuleNotFoundError):
        main(["ledger"], roles={}, tools=tools, entry=Path("run.py"))
