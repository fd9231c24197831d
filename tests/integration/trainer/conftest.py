"""A tiny model, a recipe, and the trainer as a task or as a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from consumers.trainer.worker import train
from infra.roles.lifecycle import serve
from schemas.config import RunConfig

ROOT = Path(__file__).resolve().parents[3]


Recipe = Callable[..., RunConfig]


@pytest.fixture
def recipe(tmp_path: Path, tiny_model: Path, run_name: str) -> Recipe:
    """Makes recipes for this test's run: `recipe(algorithm={...}, run={"steps": 4})`."""
    train_file = tmp_path / "train.jsonl"
    lines = [json.dumps({"prompt": f"{n} + 1 =", "answer": str(n + 1)}) for n in range(64)]
    train_file.write_text("\n".join(lines) + "\n")

    def make(**sections: dict[str, Any]) -> RunConfig:
        base: dict[str, dict[str, Any]] = {
            "run": {"name": run_name, "dir": str(tmp_path / "runs"), "steps": 4},
            "broker": {"heartbeat": 5},
            "model": {"path": str(tiny_model), "dtype": "float32"},
            "data": {"train": [{"path": str(train_file)}]},
            "reward": {"functions": [{"use": "exact_match"}]},
            "algorithm": {"group_size": 4, "groups_per_step": 2},
            "trainer": {"lr": 1e-3, "warmup_steps": 1, "micro_batch_tokens": 128},
            "deadlines": {"warn_after": 2.0, "stall": 60.0},
        }
        for section, values in sections.items():
            base[section] = {**base.get(section, {}), **values}
        return RunConfig.model_validate(base)

    return make


@pytest.fixture
def with_eval(tmp_path: Path) -> dict[str, Any]:
    """The `data.eval` section."""
    path = tmp_path / "eval.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{n}", "answer": "1"}) + "\n" for n in range(6)))
    return {"eval": [{"path": str(path)}]}


Trainer = Callable[..., Awaitable[int]]


@pytest.fixture
def trainer(broker_url: str, monkeypatch: pytest.MonkeyPatch) -> Trainer:
    """Runs the trainer role in this process; returns its exit code."""
    monkeypatch.setenv("WARREN_BROKER_URL", broker_url)

    async def run(
        config: RunConfig,
        *,
        resume: bool = False,
        purge: bool = False,
        skip_step: int | None = None,
    ) -> int:
        return await serve(
            "trainer",
            config,
            lambda ctx: train(ctx, resume=resume, purge=purge, skip_step=skip_step),
            worker="trainer-0",
        )

    return run


Spawn = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def spawn(broker_url: str, tmp_path: Path) -> Iterator[Spawn]:
    """Starts the trainer as a process of its own: `spawn(config, env={...}, resume=True)`."""
    children: list[subprocess.Popen[str]] = []

    def start(
        config: RunConfig, env: dict[str, str] | None = None, **flags: bool | int
    ) -> subprocess.Popen[str]:
        recipe_file = tmp_path / "recipe.json"
        recipe_file.write_text(config.model_dump_json())
        code = (
            "import sys; from pathlib import Path; from schemas.config import RunConfig; "
            "from consumers.trainer.worker import run; "
            f"sys.exit(run(RunConfig.model_validate_json(Path({str(recipe_file)!r}).read_text()), "
            f"worker='trainer-{len(children)}', **{flags!r}))"
        )
        with (tmp_path / f"trainer-{len(children)}.log").open("w") as log:
            child = subprocess.Popen(
                [sys.executable, "-c", code],
                cwd=ROOT,
                env={
                    **os.environ,
                    "WARREN_BROKER_URL": broker_url,
                    "OMP_NUM_THREADS": "1",
                    **(env or {}),
                },
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
            )
        children.append(child)
        return child

    yield start
    for child in children:
        if child.poll() is None:
            child.kill()
        child.wait()
