"""Fleets of workers on real engines, and conversations whose tokens no rounding decides."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from consumers.rollout.engines.base import Engine
from consumers.rollout.engines.transformers.noise import gumbel
from schemas.work import RolloutTask
from tests.contract.harness import make_engine
from tests.contract.sglang.noise import sglang_noise
from tests.factories.cuts.conversations import model_folder, task
from tests.factories.cuts.cutting import Played, Worker, play_all
from tests.factories.cuts.ties import rounding_decides
from tests.factories.loading import starting

SLOTS = 64
AT_ONCE = 96
"""Conversations; more than slots, so that some requests wait in the engine."""


@dataclass
class Park:
    """Engines by name, each started when it is first asked for; all serve the same weights."""

    folder: Path
    oracle: Any
    engines: dict[str, Engine] = field(default_factory=dict)

    async def workers(self, names: Sequence[str]) -> list[Worker]:
        """A worker on each of the engines; `vllm-1` is another process than `vllm-0`."""
        missing = [name for name in names if name not in self.engines]
        for name in missing:
            self.engines[name] = make_engine(name.partition("-")[0], self.folder, slots=SLOTS)
        weights = starting(self.folder, "float32")
        await asyncio.gather(*(self.engines[name].start(weights) for name in missing))
        return [Worker(name, self.engines[name], self.folder) for name in names]

    async def close(self) -> None:
        """End them."""
        await asyncio.gather(*(engine.close() for engine in self.engines.values()))


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def park(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Park]:
    folder = tmp_path_factory.mktemp("talker")
    made = Park(folder, model_folder(folder))
    yield made
    await made.close()


async def uncut(
    park: Park, workers: Sequence[Worker], number: int, *, first: int, sampled: bool = False
) -> tuple[list[RolloutTask], list[Played], int]:
    """So many conversations without a near tie, and how many were drawn anew for one."""
    tasks: list[RolloutTask] = []
    played: list[Played] = []
    drawn = 0
    kind = workers[0].name.partition("-")[0]
    noise = sglang_noise if kind == "sglang_server" else gumbel
    sglang = kind.startswith("sglang")
    while len(tasks) < number:
        more = [
            task(first + drawn + n, sampled=sampled, both=not sglang)
            for n in range(number - len(tasks))
        ]
        drawn += len(more)
        whole = await play_all(more, workers, [()] * len(more), at_once=AT_ONCE)
        for asked, one in zip(more, whole, strict=True):
            if not rounding_decides(park.oracle, asked, one.rollout, noise=noise, of_ranks=sglang):
                tasks.append(asked)
                played.append(one)
    return tasks, played, drawn - number


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Any:
    """Print past pytest's capture: the figures belong into every log."""

    def show(line: str) -> None:
        with capsys.disabled():
            print(f"\n{line}", flush=True)

    return show
