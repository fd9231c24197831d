"""Trackers that come along: TensorBoard for real, the others against their packages' interface."""

import subprocess
import sys
import types

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from infra.observe.tracking.backends.tensorboard import TensorBoard
from infra.observe.tracking.recorder import Recorder
from infra.observe.tracking.tracker import check_trackers, tracker_factory
from infra.roles.errors import ConfigError
from infra.runs.folder import RunFolder
from infra.runs.metrics import read_metrics
from tests.unit.infra.observe.tracking.tracked import LINE, Listening, recipe, tracked

MINE = f"{Listening.__module__}:{Listening.__name__}"


class FakeRun:
    def __init__(self, **given):
        self.given, self.rows, self.finished, self.axes = given, [], False, []

    def define_metric(self, name, *, step_metric):
        self.axes.append((name, step_metric))

    def log(self, metrics, step=None):
        self.rows.append((metrics, step))

    def finish(self):
        self.finished = True


def fake(name, monkeypatch, **attributes):
    """A package of which only what is used exists."""
    module = types.ModuleType(name)
    runs = []

    def init(**given):
        runs.append(FakeRun(**given))
        return runs[-1]

    module.__dict__.update(init=init, __version__="9", **attributes)
    monkeypatch.setitem(sys.modules, name, module)
    return runs


def scalars(folder):
    events = EventAccumulator(str(folder)).Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_tensorboard_reads_what_was_told_also_after_a_resumption(tmp_path):
    for step in (3, 4):
        tracker = TensorBoard(tracked(tmp_path))
        tracker.log("step", LINE | {"step": step})
        tracker.close()
    assert scalars(tmp_path / "tensorboard") == {
        "train/loss": [(3, 0.5), (4, 0.5)],
        "age/3-4/kl": [(3, 0.25), (4, 0.25)],
    }


def test_tensorboard_needs_no_torch():
    code = (
        "import sys; from infra.observe.tracking.backends.tensorboard import TensorBoard; "
        "from tensorboard.summary.writer.event_file_writer import EventFileWriter; "
        "print(sorted({'torch', 'tensorflow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_wandb_gets_one_run_that_is_the_same_when_resumed(tmp_path, monkeypatch):
    runs = fake("wandb", monkeypatch, Settings=dict)
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    tracker = tracker_factory("wandb")(tracked(tmp_path))
    tracker.log("step", LINE)
    tracker.close()
    (run,) = runs
    assert (run.given["project"], run.given["id"]) == ("mine", "abcdef0123456789")
    assert run.given["resume"] == "allow" and run.given["dir"] == str(tmp_path)
    assert run.axes == [("*", "step")] and run.rows == [(LINE, None)] and run.finished


def test_trackio_gets_one_run_that_is_the_same_when_resumed(tmp_path, monkeypatch):
    runs = fake("trackio", monkeypatch)
    tracker = tracker_factory("trackio")(tracked(tmp_path))
    tracker.log("eval", LINE)
    tracker.close()
    (run,) = runs
    assert (run.given["name"], run.given["resume"]) == ("r-abcdef01", "allow")
    assert run.rows == [({"train/loss": 0.5, "age/3-4/kl": 0.25}, 3)] and run.finished


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_package_that_is_missing_is_named_with_what_installs_it(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=name) as caught:
        check_trackers(recipe(tmp_path, name))
    assert f"pip install 'warren[{name}]'" in str(caught.value)


def test_check_asks_for_an_account_only_where_one_is_needed(tmp_path, monkeypatch):
    fake("wandb", monkeypatch, login=lambda prompt: False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    with pytest.raises(ConfigError, match="wandb login"):
        check_trackers(recipe(tmp_path, "wandb"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert check_trackers(recipe(tmp_path, "wandb")) == ["wandb: wandb 9, offline"]


def test_check_tries_tensorboard_and_finds_ones_own(tmp_path):
    lines = check_trackers(recipe(tmp_path, "tensorboard", MINE))
    where = "event files in tensorboard/ of the run folder"
    assert lines == [f"tensorboard: {where}", f"{MINE}: found"]
    assert list(tmp_path.iterdir()) == []
    assert check_trackers(recipe(tmp_path)) == ["metrics.jsonl alone"]
    with pytest.raises(ConfigError, match="did you mean 'tensorboard'"):
        check_trackers(recipe(tmp_path, "tensorbord"))


def test_a_line_goes_to_the_file_whole_and_to_trackers_in_numbers(tmp_path, caplog):
    config = recipe(tmp_path, "no.such:Tracker", "tensorboard", MINE)
    folder = RunFolder.of(config)
    recorder = Recorder.open(config, folder, run_id="id", exporter=None)
    recorder.append("step", {"step": 1, "train/loss": 2.0, "ledger/balanced": True, "note": "x"})
    recorder.close()
    (line,) = read_metrics(folder.metrics)
    assert line["note"] == "x" and line["train/loss"] == 2.0
    heard = Listening.made[-1].heard
    assert heard == [("step", {"step": 1.0, "train/loss": 2.0, "ledger/balanced": 1.0})]
    assert scalars(folder.root / "tensorboard")["train/loss"] == [(1, 2.0)]
    assert "cannot import 'no.such'" in caplog.text
    assert "geheim" not in str(Listening.made[-1].run.config)
