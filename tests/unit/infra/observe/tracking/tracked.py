"""A run to be tracked, and trackers that misbehave."""

import threading
from pathlib import Path
from typing import Any, ClassVar

from infra.observe.tracking.tracker import TrackedRun
from schemas.config import RunConfig

LINE = {"step": 3.0, "version": 2.0, "train/loss": 0.5, "age/3-4/kl": 0.25}


def recipe(folder: Path, *backends: str) -> RunConfig:
    return RunConfig.model_validate(
        {
            "run": {"name": "r", "steps": 1, "dir": str(folder)},
            "broker": {"url": "amqp://me:geheim@host/"},
            "model": {"path": "m"},
            "data": {"train": [{"path": "d.jsonl"}]},
            "reward": {"functions": [{"use": "exact"}]},
            "trainer": {"lr": 0.1},
            "tracking": {"backends": backends},
        }
    )


def tracked(folder: Path) -> TrackedRun:
    return TrackedRun(name="r", run_id="abcdef0123456789", folder=folder, config={"run": {}})


class Listening:
    """Keeps what it hears."""

    made: ClassVar[list["Listening"]] = []

    def __init__(self, run: TrackedRun) -> None:
        self.run, self.heard, self.closed = run, list[Any](), False
        self.made.append(self)

    def log(self, kind: str, values: Any) -> None:
        self.heard.append((kind, values))

    def close(self) -> None:
        self.closed = True


class Stuck(Listening):
    """Takes one line and does not come back until it is let go."""

    def __init__(self, run: TrackedRun) -> None:
        super().__init__(run)
        self.taken, self.go_on = threading.Event(), threading.Event()

    def log(self, kind: str, values: Any) -> None:
        self.taken.set()
        self.go_on.wait(30)
        super().log(kind, values)


class Broken(Listening):
    """Refuses every line but the last."""

    def log(self, kind: str, values: Any) -> None:
        if kind != "end":
            raise ConnectionError("no route to host")
        super().log(kind, values)
