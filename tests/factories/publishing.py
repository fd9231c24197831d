"""A trainer's publisher alone, on a folder, with a broker that only listens."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from consumers.trainer.arriving.chronicle import Chronicle
from consumers.trainer.arriving.shelf import Shelf
from consumers.trainer.books.balance import Rules
from consumers.trainer.books.evaluation import Evaluations
from consumers.trainer.books.ledger import Ledger
from consumers.trainer.learn.learner import Learner
from consumers.trainer.publish import Publisher
from consumers.trainer.steering.fence import Fence
from infra.amqp.codec import decode
from infra.amqp.message import Outgoing
from infra.observe.waits import Waits
from infra.runs.incarnation import Incarnations
from infra.runs.journal import Journal
from infra.runs.journal_reader import JournalReader
from infra.weights.store import WeightStore
from schemas.config import RunConfig
from schemas.control import WeightsPublished
from schemas.journal import Opened
from tests.factories.models import build


@dataclass
class Told:
    """A broker that only listens."""

    versions: list[WeightsPublished] = field(default_factory=list)

    async def publish(self, message: Outgoing, *, timeout_s: float | None = None) -> None:
        assert message.exchange == "sync"
        self.versions.append(decode(message.envelope, message.body, WeightsPublished))


@dataclass
class Context:
    """The part of a role's context that publishing uses."""

    config: RunConfig
    broker: Told
    waits: Waits = field(default_factory=Waits)
    app_id: str = "trainer/0"


class Room:
    """A trainer's publisher on a folder; another one on the same folder is its successor."""

    def __init__(self, folder: Path, config: RunConfig, told: Told) -> None:
        self.refused = -1
        self.store = WeightStore.at(folder / "weights")
        fence = Fence(Incarnations(folder / "incarnations"))
        opened = Opened(run_id="r", incarnation=fence.incarnation, step=0)
        self.chronicle = Chronicle(
            journal=Journal(folder / "journal", opened),
            ledger=Ledger(Rules.of(config)),
            evaluations=Evaluations(),
            fence=fence,
            shelf=Shelf(JournalReader(folder / "journal")),
            max_fruitless=9,
        )
        context: Any = Context(config, told)
        self.waits: Waits = context.waits
        self.publisher = Publisher(
            context, self.chronicle, self.store, run_id="r", refused=self._asked
        )

    def _asked(self) -> int:
        asyncio.get_running_loop()
        return self.refused


def recipe(root: Path, **weights: Any) -> RunConfig:
    """A tiny model in float32, made in `root`; the other arguments are of `[weights]`."""
    build(root / "model", tied=True, seed=0)
    return RunConfig.model_validate(
        {
            "run": {"name": "r", "steps": 1},
            "model": {"path": str(root / "model"), "dtype": "float32"},
            "data": {"train": [{"path": "train.jsonl"}]},
            "reward": {"functions": [{"use": "exact_match"}]},
            "trainer": {"lr": 1e-3},
            "weights": weights,
        }
    )


def move(learner: Learner, by: float) -> None:
    """Change the weights."""
    with torch.no_grad():
        next(iter(learner.policy.masters().values())).add_(by)
