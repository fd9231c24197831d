"""The live view in a real terminal, small and large."""

import asyncio
import shlex
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.broker_fixtures import Connect
from tests.integration.observe.fleet import Fleet
from tests.packages import Program

ROOT = Path(__file__).resolve().parents[3]
SIZES = [(80, 24), (200, 50)]
pytestmark = [pytest.mark.broker, pytest.mark.terminal, pytest.mark.timeout(240)]


class Terminal:
    """A tmux server of its own with one window."""

    def __init__(self, tmux: Program, folder: Path) -> None:
        self._tmux = tmux
        self._socket = str(folder / f"tmux-{uuid.uuid4().hex[:6]}")

    def call(self, *words: str) -> str:
        """A tmux command; its output."""
        done = subprocess.run(
            [str(self._tmux.path), "-S", self._socket, "-f", "/dev/null", *words],
            env={**self._tmux.environ, "LC_ALL": "C.UTF-8"},
            check=True,
            capture_output=True,
            text=True,
            timeout=30,
        )
        return done.stdout

    def open(self, width: int, height: int, command: str) -> None:
        self.call("new-session", "-d", "-x", str(width), "-y", str(height), command)

    def screen(self) -> list[str]:
        """What is to be seen now."""
        return self.call("capture-pane", "-p").splitlines()

    async def until(self, seen: Callable[[list[str]], bool]) -> list[str]:
        """Wait for something to be seen."""
        shown: list[str] = []
        try:
            async with asyncio.timeout(60):
                while not seen(shown := await asyncio.to_thread(self.screen)):
                    await asyncio.sleep(0.2)
        except TimeoutError:
            pytest.fail("not to be seen:\n" + "\n".join(shown))
        return shown


@pytest.fixture
def terminal(tmux: Program, tmp_path: Path) -> Iterator[Terminal]:
    made = Terminal(tmux, tmp_path)
    yield made
    subprocess.run(
        [str(tmux.path), "-S", made._socket, "kill-server"], env=tmux.environ, check=False
    )


def command(run_name: str, url: str) -> str:
    """The live view, and afterwards its exit code."""
    words = [sys.executable, str(ROOT / "run.py"), "monitor", "demo", f"run.name={run_name}"]
    return f"WARREN_BROKER_URL={shlex.quote(url)} {shlex.join(words)}; echo left with $?; sleep 100"


def has(*words: str) -> Callable[[list[str]], bool]:
    return lambda shown: all(word in "\n".join(shown) for word in words)


@pytest.mark.parametrize(("width", "height"), SIZES)
async def test_the_essential_fits_and_ctrl_c_leaves(
    width: int,
    height: int,
    terminal: Terminal,
    broker_url: str,
    run_name: str,
    connect: Connect,
) -> None:
    fleet = Fleet(await connect(), num_rollout=64)
    terminal.open(width, height, command(run_name, broker_url))
    shown = await terminal.until(has("all well", "1280/2048 slots", "prompts"))
    text = "\n".join(shown)
    assert "step 42/120" in shown[0]
    assert shown[2].startswith("● all well")
    for essential in ("reward 0.600", "credits", "rollouts", "trainer", "more", "balanced"):
        assert essential in text
    assert len([line for line in shown if line.startswith("ledger")]) == 1
    assert shown[-1] == "" or shown[-1].startswith("ledger")

    fleet.roles["producer"] = 0
    shown = await terminal.until(has("no producer is heard", "run.py producer"))
    assert "✖ no producer is heard" in "\n".join(shown[:4])

    terminal.call("send-keys", "C-c")
    shown = await terminal.until(has("left with 0"))
    assert not any("trainer" in line for line in shown)
    await fleet.stop()


async def test_a_broker_that_is_gone_is_named_and_asked_for_again(
    terminal: Terminal, run_name: str
) -> None:
    terminal.open(80, 24, command(run_name, "amqp://guest:secret@127.0.0.1:1/"))
    shown = await terminal.until(has("is not reached for", "keeps trying"))
    text = "\n".join(shown)
    assert "127.0.0.1:1" in text
    assert "secret" not in text
    before = text
    await terminal.until(lambda shown: has("is not reached")(shown) and "\n".join(shown) != before)


async def test_it_follows_the_size_of_its_terminal(
    terminal: Terminal, broker_url: str, run_name: str, connect: Connect
) -> None:
    fleet = Fleet(await connect(), num_rollout=8)
    terminal.open(200, 50, command(run_name, broker_url))
    await terminal.until(has("some-machine", "rollout-8"))
    terminal.call("resize-window", "-x", "80", "-y", "24")
    shown = await terminal.until(lambda shown: "some-machine" not in "\n".join(shown))
    assert len(shown) <= 24
    await fleet.stop()
