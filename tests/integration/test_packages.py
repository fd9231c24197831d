"""What tests drive can be started as it was found."""

import subprocess

import pytest

from tests.packages import Program


@pytest.mark.browser
def test_the_browser_starts(chromium: Program) -> None:
    said = subprocess.run(
        [chromium.path, "--version"], env=chromium.environ, check=True, capture_output=True
    )
    assert b"Chromium" in said.stdout


@pytest.mark.terminal
def test_the_terminal_starts(tmux: Program) -> None:
    said = subprocess.run([tmux.path, "-V"], env=tmux.environ, check=True, capture_output=True)
    assert said.stdout.startswith(b"tmux ")
