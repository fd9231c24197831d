"""One run of a pair, measured from outside."""

import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.recipes.demo.prepare import Prepared
from infra.roles.fleet.processes import end_all
from infra.runs.metrics import read_metrics
from tests.benchmarks.observing.spent import cpu_s
from tests.benchmarks.observing.watchers import FRONT_DOOR, Watchers

WARM_UP = 5
"""Steps before the measured ones."""
PARTS = ("recording", "monitor", "prometheus", "tensorboard")
_LOOK_S = 0.25
_LEAST_DRAWN = 10_000
_PATIENCE_S = 1800.0


@dataclass(frozen=True, slots=True)
class Figures:
    """Of the steps behind the warm-up."""

    rate: float
    """Rollouts a second that came in at the trainer."""
    cpu_ms: Mapping[str, float]
    """By who spent it, those who watch included, per rollout."""

    @property
    def total_cpu_ms(self) -> float:
        """Of everybody."""
        return sum(self.cpu_ms.values())


def settings(parts: Collection[str]) -> list[str]:
    """The recipe's keys that switch these parts of watching on, and the others off."""
    return [
        f"broker.recording={'true' if 'recording' in parts else 'false'}",
        f"tracking.prometheus_port={19_400 if 'prometheus' in parts else 0}",
        f"tracking.backends={['tensorboard'] if 'tensorboard' in parts else []}",
    ]


def measure(folder: Path, name: str, parts: Collection[str], *, steps: int) -> Figures:
    """Run the demo's recipe.

    Args:
        folder: Of run folders, with what the demo starts from.
        name: Of the run.
        parts: Of `PARTS`, what watches it.
        steps: To take; those behind `WARM_UP` count.

    Raises:
        RuntimeError: It did not end well.
    """
    prepared, root = Prepared.of(folder, 0), folder / name
    command = [sys.executable, str(FRONT_DOOR), "up", "demo", f"run.steps={steps}"]
    command += [f"run.name={name}", f"run.dir={folder}", f"model.path={prepared.model}"]
    command += [f"data.train.0.path={prepared.train}", "data.eval=[]", *settings(parts)]
    log = folder / f"{name}.log"
    shutil.rmtree(root, ignore_errors=True)  # what a former run measured counts for nothing
    with log.open("w", encoding="utf-8") as output:
        up = subprocess.Popen(command, stdout=output, stderr=output)
    watchers: Watchers | None = None
    began, spent, counted = Counter[str](), Counter[str](), 0
    deadline = time.monotonic() + _PATIENCE_S
    while up.poll() is None and time.monotonic() < deadline:
        num_done = len(_steps(root))
        if watchers is None and num_done:
            watchers = Watchers(root, parts)
        pids = [up.pid, *(watchers.pids if watchers is not None else ())]
        if num_done <= WARM_UP:
            began = cpu_s(pids)
        elif num_done < steps:
            spent, counted = cpu_s(pids) - began, num_done
        time.sleep(_LOOK_S)
    if watchers is not None:
        watchers.stop()
        if "monitor" in parts and watchers.drawn < _LEAST_DRAWN:
            raise RuntimeError(f"the monitor of {name} has drawn {watchers.drawn} bytes")
    if up.poll() is None:
        end_all(up.pid)
        up.kill()
    if up.wait() != 0:
        raise RuntimeError(f"{name} ended with {up.returncode}: see {log}")
    lines = _steps(root)
    arrived = [line["arrived/trajectories"] for line in lines]
    num_rollouts = sum(arrived[WARM_UP:counted])
    seconds = sum(line["time/step_s"] for line in lines[WARM_UP:])
    return Figures(
        rate=sum(arrived[WARM_UP:]) / seconds,
        cpu_ms={who: 1e3 * cpu_s / num_rollouts for who, cpu_s in sorted(spent.items())},
    )


def _steps(root: Path) -> list[dict[str, Any]]:
    return list(read_metrics(root / "metrics.jsonl", "step"))
