"""One run of a pair, measured from outside."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.recipes.demo.prepare import Prepared
from infra.roles.fleet.processes import descendants, end_all
from infra.runs.metrics import read_metrics
from tests.benchmarks.observing.watchers import FRONT_DOOR, Watchers

WARM_UP = 5
"""Steps before the measured ones."""
BARE = ("broker.recording=false",)
OBSERVED = ("tracking.backends=['tensorboard']", "tracking.prometheus_port=19400")
_TICKS = os.sysconf("SC_CLK_TCK")
_LOOK_S = 0.25
_LEAST_DRAWN = 10_000
_PATIENCE_S = 1800.0


@dataclass(frozen=True, slots=True)
class Figures:
    """Of the steps behind the warm-up."""

    rate: float
    """Rollouts a second that came in at the trainer."""
    cpu_ms: float
    """Of every process, those who watch included, per rollout."""


def measure(
    folder: Path, name: str, settings: Sequence[str], *, steps: int, watched: bool
) -> Figures:
    """Run the demo's recipe.

    Args:
        folder: Of run folders, with what the demo starts from.
        name: Of the run.
        settings: Keys to override.
        steps: To take; those behind `WARM_UP` count.
        watched: Whether a monitor and a scraper watch it.

    Raises:
        RuntimeError: It did not end well.
    """
    prepared, root = Prepared.of(folder, 0), folder / name
    command = [sys.executable, str(FRONT_DOOR), "up", "demo", f"run.steps={steps}"]
    command += [f"run.name={name}", f"run.dir={folder}", f"model.path={prepared.model}"]
    command += [f"data.train.0.path={prepared.train}", "data.eval=[]", *settings]
    log = folder / f"{name}.log"
    shutil.rmtree(root, ignore_errors=True)  # what a former run measured counts for nothing
    with log.open("w", encoding="utf-8") as output:
        up = subprocess.Popen(command, stdout=output, stderr=output)
    watchers: Watchers | None = None
    began, spent, counted = 0.0, 0.0, 0
    deadline = time.monotonic() + _PATIENCE_S
    while up.poll() is None and time.monotonic() < deadline:
        num_done = len(_steps(root))
        if watched and watchers is None and num_done:
            watchers = Watchers(root)
        pids = [up.pid, *(watchers.pids if watchers is not None else ())]
        if num_done <= WARM_UP:
            began = _cpu_s(pids)
        elif num_done < steps:
            spent, counted = _cpu_s(pids) - began, num_done
        time.sleep(_LOOK_S)
    if watchers is not None:
        watchers.stop()
        if watchers.drawn < _LEAST_DRAWN:
            raise RuntimeError(f"the monitor of {name} has drawn {watchers.drawn} bytes")
    if up.poll() is None:
        end_all(up.pid)
        up.kill()
    if up.wait() != 0:
        raise RuntimeError(f"{name} ended with {up.returncode}: see {log}")
    lines = _steps(root)
    arrived = [line["arrived/trajectories"] for line in lines]
    seconds = sum(line["time/step_s"] for line in lines[WARM_UP:])
    return Figures(
        rate=sum(arrived[WARM_UP:]) / seconds,
        cpu_ms=1e3 * spent / sum(arrived[WARM_UP:counted]),
    )


def _steps(root: Path) -> list[dict[str, Any]]:
    return list(read_metrics(root / "metrics.jsonl", "step"))


def _cpu_s(roots: Sequence[int]) -> float:
    """Seconds that these processes and their descendants have spent, with those that have ended."""
    ticks = 0
    for pid in {*roots, *(child for root in roots for child in descendants(root))}:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            continue
        ticks += sum(map(int, stat.rpartition(")")[2].split()[11:15]))
    return ticks / _TICKS
