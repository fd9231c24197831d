"""W&B and trackio for real, read back by what each brings along. Their twins with stand-ins for
the packages are in `test_backends.py`."""

import importlib.util
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

FEEDING = "tests.unit.infra.observe.tracking.feeding"
ROOT = Path(__file__).resolve().parents[5]
FED = ((1, 3), (3, 4))
"""Steps before and after a resumption: one is told again."""
ROWS = [(1, 1.0), (2, 1 / 2), (3, 1 / 3), (3, 1 / 3), (4, 1 / 4)]


def installed(package: str) -> pytest.MarkDecorator:
    """Skips where an extra is not installed."""
    return pytest.mark.skipif(
        importlib.util.find_spec(package) is None,
        reason=f"{package} is not installed: pip install 'warren[{package}]'",
    )


def run(folder: Path, *argv: str) -> str:
    """Run a command in a folder to which the packages keep; what it said."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder),
        "TRACKIO_DIR": str(folder / "trackio"),
        "TRACKIO_PROJECT": "mine",
        "WANDB_MODE": "offline",
        "WANDB_PROJECT": "mine",
    }
    return subprocess.run(
        argv, cwd=folder, env=environment, capture_output=True, text=True, check=True
    ).stdout


def feed(folder: Path, name: str) -> str:
    """Tell a tracker of a run and of its resumption."""
    words = [(sys.executable, "-m", FEEDING, name, str(first), str(last)) for first, last in FED]
    return "".join(run(folder, *argv) for argv in words)


def tool(name: str) -> str:
    """A command that came with a package."""
    return str(Path(sys.executable).with_name(name))


@pytest.mark.trackio
@installed("trackio")
def test_trackio_tells_what_it_was_told_also_after_a_resumption(tmp_path: Path) -> None:
    assert "trackio: trackio 0." in feed(tmp_path, "trackio")

    def told(metric: str) -> list[tuple[int, float]]:
        of = ("--project", "mine", "--run", "r-abcdef01", "--metric", metric, "--json")
        answer = json.loads(run(tmp_path, tool("trackio"), "get", "metric", *of))
        return [(one["step"], one["value"]) for one in answer["values"]]

    assert told("train/loss") == ROWS
    assert told("eval/reward") == [(3, 3 / 8), (4, 4 / 8)]
    assert all(math.isnan(value) for _, value in told("train/kl"))
    assert "geheim" not in run(
        tmp_path, tool("trackio"), "get", "run", "--project", "mine", "--run", "r-abcdef01"
    )


@pytest.mark.wandb
@installed("wandb")
def test_wandb_offline_tells_what_it_was_told_also_after_a_resumption(tmp_path: Path) -> None:
    assert "wandb: wandb 0." in feed(tmp_path, "wandb")
    parts = sorted((tmp_path / "r" / "wandb").glob("offline-run-*/run-abcdef0123456789.wandb"))
    assert len(parts) == len(FED)
    lines = [run(tmp_path, tool("wandb"), "leet", "inspect", "--json", str(p)) for p in parts]
    records = [json.loads(line) for part in lines for line in part.splitlines()]
    rows = [one["history"]["item"] for one in records if one["type"] == "history"]
    assert [(row["step"], row["train/loss"]) for row in rows if "train/loss" in row] == ROWS
    rewards = [(row["step"], row["eval/reward"]) for row in rows if "eval/reward" in row]
    assert rewards == [(3, 3 / 8), (4, 4 / 8)]
    assert {row["train/kl"] for row in rows if "train/kl" in row} == {"NaN"}
    named = [(one["run"]["project"], one["run"]["run_id"]) for one in records if "run" in one]
    assert named == [("mine", "abcdef0123456789")] * len(FED)
    assert "geheim" not in "".join(lines)
