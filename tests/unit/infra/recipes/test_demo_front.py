"""The demo's exit code: the run's own, and 1 when a good run missed a mark."""

import json

import pytest

from infra.recipes.demo import __main__ as front

SUMMARY = {
    "reward_final": 0.95,
    "snapshots_resumed": 60,
    "snapshots_resumed_elsewhere": 20,
    "ledger": {"balanced": True},
    "trained_twice": 0,
}


@pytest.fixture
def pretend(tmp_path, monkeypatch):
    """Replaces both child processes; the run leaves a folder and ends with `code`."""
    commands = []

    def make(*, code=0, prepared=0, summary=SUMMARY, leaves=True):
        class Run:
            def __init__(self, command):
                commands.append(command)
                folder = tmp_path / "demo-transformers-seed3"
                folder.mkdir()
                if leaves:
                    line = {"kind": "eval", "version": 0, "eval/reward": 0.05}
                    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
                    (folder / "summary.json").write_text(json.dumps(summary))

            def wait(self):
                return code

        monkeypatch.setattr(front.subprocess, "call", lambda command: prepared)
        monkeypatch.setattr(front.subprocess, "Popen", Run)
        monkeypatch.setattr(front.signal, "signal", lambda *_: None)
        return commands

    return make


def run(tmp_path, *more):
    return front.main(["--seed", "3", "--runs", str(tmp_path), *more])


def test_a_good_run_ends_with_0_and_leaves_a_chart(pretend, tmp_path, capsys):
    commands = pretend()
    assert run(tmp_path, "run.steps=7") == 0
    assert (tmp_path / "demo-transformers-seed3" / "reward.png").exists()
    assert "reached  reward_final >= 0.9  (0.95)" in capsys.readouterr().out
    (command,) = commands
    assert command[-1] == "--purge"
    assert {"run.seed=3", "rollout.engine=transformers", "run.steps=7"} <= set(command)
    assert f"model.path={tmp_path}/demo-base-seed3/model" in command


def test_a_missed_mark_is_named_and_ends_with_1(pretend, tmp_path, capsys):
    pretend(summary=SUMMARY | {"snapshots_resumed": 3})
    assert run(tmp_path) == 1
    assert "the demo missed: snapshots_resumed >= 50" in capsys.readouterr().err


@pytest.mark.parametrize("leaves", [True, False])
def test_a_run_that_failed_keeps_its_code(pretend, tmp_path, leaves):
    pretend(code=4, leaves=leaves)
    assert run(tmp_path) == 4


def test_a_run_that_left_nothing_is_no_success(pretend, tmp_path):
    pretend(leaves=False)
    assert run(tmp_path) == 1


def test_without_a_starting_model_nothing_runs(pretend, tmp_path):
    commands = pretend(prepared=1)
    assert run(tmp_path) == 1
    assert commands == []
