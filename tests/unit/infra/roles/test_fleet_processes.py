"""Real processes, started again: their words, who is written down, what they leave behind."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra.observe.relay import Relay
from infra.roles.errors import RoleDied
from infra.roles.fleet import children
from infra.roles.fleet.children import RoleProcess
from infra.roles.fleet.processes import alive, end_orphans, environment_of
from infra.roles.fleet.roles import Roles, plan
from infra.runs.folder import RunFolder
from tests.unit.infra.roles.role_contexts import make_context

SAY = "import sys, time; print(*sys.argv[1:], flush=True); time.sleep(600)"


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def child(tmp_path: Path) -> Iterator[RoleProcess]:
    child = RoleProcess(
        "trainer",
        "trainer",
        [sys.executable, "-c", SAY],
        log=tmp_path / "log",
        at_first=["--purge"],
        again=["--resume"],
    )
    yield child
    child.kill()


def test_started_again_it_gets_other_words_and_another_number(
    child: RoleProcess, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path)
    relay = Relay(everything_of="trainer")
    roles = Roles([child], folder, relay=relay, environment=dict(os.environ), others=tuple)
    roles._start(child)
    until(lambda: child.log.read_text() == "--purge\n")
    roles.note_running()
    first = json.loads(folder.fleet.read_text())
    assert first == {"trainer": child.pid}
    assert "WARREN_WORKER=trainer" in environment_of(child.pid)
    child.kill()
    assert child.exit_code() == -9
    roles.note_running()
    assert json.loads(folder.fleet.read_text()) == {}
    roles.restart(child)
    until(lambda: child.log.read_text() == "--resume\n")
    assert (tmp_path / "log").read_text() == "--purge\n"
    assert child.log == tmp_path / "log.2"
    roles.note_running()
    assert json.loads(folder.fleet.read_text()) == {"trainer": child.pid} != first


def test_a_machine_without_room_for_a_first_start_is_told_of(tmp_path: Path) -> None:
    child = RoleProcess("reward", "reward-1", [str(tmp_path / "nowhere")], log=tmp_path / "log")
    relay = Relay(everything_of="trainer")
    roles = Roles([child], RunFolder(tmp_path), relay=relay, environment={}, others=tuple)
    with pytest.raises(RoleDied, match="reward-1 cannot be started: No such file"):
        roles.start_all()


def test_only_the_trainer_is_told_to_resume(tmp_path: Path) -> None:
    config = make_context(tmp_path).config
    planned = plan(config, RunFolder(tmp_path), Path("run.py"), ["--purge"])
    words = {child.name: (child._at_first, child._again) for child in planned}
    assert words["trainer"] == (["--purge"], ["--resume"])
    assert [words[name] for name in ("producer-1", "rollout-1", "reward-1")] == [([], [])] * 3


def test_a_trainer_that_is_started_again_is_told_again_which_step_to_give_up(
    tmp_path: Path,
) -> None:
    """The one before it may have died before it did."""
    config = make_context(tmp_path).config
    trainer, *others = plan(config, RunFolder(tmp_path), Path("run.py"), ["--resume"], skip_step=7)
    words = ["--resume", "--skip-step", "7"]
    assert (trainer._at_first, trainer._again) == (words, words)
    assert all((child._at_first, child._again) == ([], []) for child in others)


def test_orphans_of_the_dead_are_ended_and_nobody_elses() -> None:
    def sleeper(mark: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(["sleep", "600"], env={**os.environ, "MARK": mark})

    dead, other, spared = sleeper("a"), sleeper("ab"), sleeper("a")
    until(lambda: all("MARK" in str(environment_of(p.pid)) for p in (dead, other, spared)))
    assert end_orphans(os.getpid(), mark="MARK=a", spare=[spared.pid]) == [dead.pid]
    assert dead.wait(10) == -9
    assert alive(other.pid)
    assert alive(spared.pid)
    for process in (other, spared):
        process.kill()
        process.wait()


class Unkillable:
    """In uninterruptible sleep, as over a dead network disk."""

    pid = 2**22 + 1

    def poll(self) -> None:
        return None

    def wait(self, timeout: float) -> int:
        raise subprocess.TimeoutExpired("it", timeout)


def test_one_that_the_kernel_does_not_let_go_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stuck = RoleProcess("rollout", "rollout-1", [], log=tmp_path / "log")
    monkeypatch.setattr(stuck, "_process", Unkillable())
    monkeypatch.setattr(children, "_GONE_S", 0.0)
    assert stuck.exit_code() is None
    stuck.kill()
    assert stuck.exit_code() == -9
    assert "does not end, even killed" in caplog.text
