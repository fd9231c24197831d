"""A short storm: every kind of fault once, real processes, a broker of its own. Its seed kills each
process once, and the broker."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from infra.recipes.storm.prepare import prepare
from infra.roles.broker_url import BROKER_VARIABLE
from schemas.storm import FaultKind, StormReport
from tests.processes import popen

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.broker, pytest.mark.timeout(1800)]


def storm(folder: Path, *arguments: str) -> tuple[int, str, StormReport]:
    """Exit code, output and report of `run.py storm storm` in a folder."""
    base = prepare(folder)
    environment = {key: value for key, value in os.environ.items() if key != BROKER_VARIABLE}
    process = popen(
        [
            sys.executable,
            str(ROOT / "run.py"),
            "storm",
            "storm",
            f"run.dir={folder}",
            f"model.path={base / 'model'}",
            f"data.train.0.path={base / 'train.jsonl'}",
            *arguments,
        ],
        cwd=folder,
        env=environment | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    output, _ = process.communicate()
    written = folder / "storm" / "storm.json"
    assert written.exists(), output
    return process.returncode, output, StormReport.model_validate_json(written.read_bytes())


def assert_stood(code: int, output: str, report: StormReport) -> None:
    assert report.breaches == (), output
    assert code == 0, output
    assert report.lost == report.trained_twice == report.ledger_imbalance == 0
    assert report.unexplained_dead_letters == 0
    assert report.trained > 0
    for kind, count in report.faults.items():
        assert count.survived == count.injected > 0, kind


def test_a_run_meets_every_fault_and_loses_nothing(tmp_path: Path) -> None:
    code, output, report = storm(
        tmp_path,
        *("run.steps=8", "rollout.workers=2", "reward.workers=1"),
        *("--minutes", "0.4", "--kills", "6", "--seed", "238"),
    )
    assert_stood(code, output, report)
    assert set(report.faults) == set(FaultKind)
    assert report.kills == 6
    assert report.ks_p is not None
    assert report.ks_p > 0.001
    assert "again: run.py storm storm" in output
    (own,) = tmp_path.glob("storm-storm")
    secret = (own / "broker" / "credentials.json").read_text().split('"password": "')[1][:20]
    said = [*own.glob("*.log"), *(tmp_path / "storm" / "logs").glob("attempt_*/*.log")]
    assert not [path for path in said if secret in path.read_text(errors="replace")]
    assert secret not in output


def test_a_run_with_a_real_engine_loses_nothing_either(tmp_path: Path) -> None:
    code, output, report = storm(
        tmp_path,
        *("run.steps=8", "rollout.workers=2", "reward.workers=1"),
        *("rollout.engine=transformers", "rollout.engine_options={}"),
        *("--minutes", "0.5", "--kills", "4", "--seed", "2"),
        *("--kinds", "kill,term,broker_kill,cut,flip,duplicate"),
    )
    assert_stood(code, output, report)
    assert report.kills == 4
