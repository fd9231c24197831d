"""A count on a terminal, and nothing where nobody looks."""

import io
import sys

import pytest

from infra.observe.columns import columns
from infra.observe.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    times = iter([0.0, 0.1, 0.7, 0.8])
    counter = Progress("rollouts", clock=lambda: next(times))
    for number in (1, 1200, 1201):
        counter.show(number)
    counter.clear()
    counter.clear()
    return stream.getvalue()


def test_a_terminal_is_told_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(Terminal(), monkeypatch) == "\r1,200 rollouts\r\x1b[K"


def test_a_file_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(io.StringIO(), monkeypatch) == ""


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    rows = [("", "old", "new"), ("exact", "0.25", ""), ("x", "-", "1")]
    assert columns(rows) == "          old  new\n  exact  0.25\n  x         -    1\n"
