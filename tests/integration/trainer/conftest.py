"""A tiny model, a recipe, and the trainer as a task or as a process of its own."""

import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from consumers.trainer.worker import train
from infra.roles.lifecycle import serve
from schemas.config import RunConfig
from tests.warm import Child, be_trainer, warm_up

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


Spawn = Callable[..., Child]


@pytest.fixture
def spawn(broker_url: str, tmp_path: Path) -> Iterator[Spawn]:
    """Starts the trainer as a process of its own: `spawn(config, env={...}, resume=True)`."""
    warm_up()
    children: list[Child] = []

    def start(config: RunConfig, env: dict[str, str] | None = None, **flags: bool | int) -> Child:
        recipe_file = tmp_path / "recipe.json"
        recipe_file.write_text(config.model_dump_json())
        child = Child(
            be_trainer,
            str(recipe_file),
            f"trainer-{len(children)}",
            flags,
            log=tmp_path / f"trainer-{len(children)}.log",
            env={"WARREN_BROKER_URL": broker_url, "OMP_NUM_THREADS": "1", **(env or {})},
        )
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        child.wait()
