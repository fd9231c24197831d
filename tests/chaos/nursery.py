"""Trainers, forked from a warm process: each a process of its own that a SIGKILL can end."""

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.roles.prctl import die_with
from infra.runs.failpoints import FailPoint
from infra.runs.folder import RunFolder
from schemas.config import RunConfig

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Kill:
    """Where a trainer is to die; with `power` the machine's memory is lost with it."""

    point: FailPoint
    count: int = 1
    power: bool = False

    def __str__(self) -> str:
        return f"{self.point.value}:{self.count}{' and power' if self.power else ''}"


@dataclass(frozen=True)
class Life:
    """One trainer process, from fork to end."""

    status: int
    killed: bool
    reached: Counter[str] = field(default_factory=Counter)


class Nursery:
    """Talks to the warm process."""

    def __init__(self, broker_url: str) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.zygote"],
            cwd=ROOT,
            env={
                **os.environ,
                "WARREN_BROKER_URL": broker_url,
                "OMP_NUM_THREADS": "1",
                "CUDA_VISIBLE_DEVICES": "",
                "TOKENIZERS_PARALLELISM": "false",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=die_with(os.getpid()),
        )
        assert "ready" in self._answer()

    async def live(
        self, config: RunConfig, folder: Path, number: int, *, resume: bool, kill: Kill | None
    ) -> Life:
        """Run trainer number `number` of a run to its end.

        Args:
            folder: For its log and trace, and those of the trainers before it.
        """
        trace, before = folder / f"trace-{number}.json", folder / f"trace-{number - 1}.json"
        recipe = folder / "recipe.json"
        recipe.write_text(config.model_dump_json())
        order = {
            "config": str(recipe),
            "resume": resume,
            "worker": f"trainer-{number}",
            "log": str(folder / f"trainer-{number}.log"),
            "trace": str(trace),
            "synced": json.loads(before.read_text())["synced"] if before.exists() else {},
            "kill": None
            if kill is None
            else {
                "point": kill.point.value,
                "count": kill.count,
                "power": kill.power,
                "journal": str(RunFolder.of(config).journal),
            },
        }
        answer = await asyncio.to_thread(self._ask, order)
        left = json.loads(trace.read_text()) if trace.exists() else {"killed": False, "counts": {}}
        return Life(answer["status"], left["killed"], Counter(left["counts"]))

    def close(self) -> None:
        """End the warm process, and with it whatever it forked."""
        self._child.kill()
        self._child.wait()

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(order) + "\n")
        self._child.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        assert line, f"the warm process ended with {self._child.wait()}"
        answer: dict[str, Any] = json.loads(line)
        return answer
