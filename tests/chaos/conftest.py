"""A tiny model, a recipe, the warm process, and one way to run a trainer to its end."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from schemas.config import RunConfig
from tests.chaos.feeder import Feeder
from tests.chaos.nursery import Kill, Life, Nursery
from tests.chaos.outcome import Final, Told
from tests.factories.recorded import RecordedStream
from tests.factories.world import working

STREAM = RecordedStream(num_steps=6)
EVAL_PROMPTS = 3
_BREATH_S = 0.1
"""The broker needs a moment to free what a killed trainer held."""
_FAREWELL_S = 30.0


@pytest.fixture(scope="module")
def nursery(broker_url: str) -> Iterator[Nursery]:
    """The warm process."""
    nursery = Nursery(broker_url)
    yield nursery
    nursery.close()


@dataclass(frozen=True)
class History:
    """A run and every trainer that it took."""

    final: Final
    told: Told | None
    """None when the journal's beginning was dropped."""
    lives: tuple[Life, ...]
    broadcast: frozenset[tuple[int, str]]
    """Versions and fingerprints heard."""
    over: bool
    num_credits: int


Play = Callable[..., Awaitable[History]]


@pytest.fixture
def play(tmp_path: Path, tiny_model: Path, nursery: Nursery, run_name: str, connect) -> Play:
    """Runs the recording to its end, killing one trainer after the other: `await play(kills)`.

    With `forgetful=True` the journal keeps no more than its checkpoints need.
    """

    runs = count()

    async def run(kills: Sequence[Kill], *, forgetful: bool = False) -> History:
        name = f"{run_name}-{next(runs)}"
        folder = tmp_path / name
        folder.mkdir()
        config = recipe(folder, tiny_model, name, forgetful=forgetful)
        broker = await connect(app_id="feeder/0", run=name)
        feeder = Feeder(broker, config, STREAM)
        lives: list[Life] = []
        async with working(feeder):
            for kill in [*kills, None]:
                number = len(lives)
                life = await nursery.live(config, folder, number, resume=number > 0, kill=kill)
                lives.append(life)
                assert life.killed or life.status == 0, f"status {life.status}:\n{_log(folder)}"
                if life.killed:
                    await feeder.repeat_last()
                    await asyncio.sleep(_BREATH_S)
            with contextlib.suppress(TimeoutError):  # what was sent last is still on its way
                async with asyncio.timeout(_FAREWELL_S):
                    await feeder.over.wait()
        return History(
            Final.read(config),
            None if forgetful else Told.read(config),
            tuple(lives),
            frozenset(feeder.broadcast),
            feeder.over.is_set(),
            feeder.num_credits,
        )

    return run


def _log(folder: Path) -> str:
    """The end of what the trainers said."""
    return "".join(path.read_text() for path in sorted(folder.glob("trainer-*.log")))[-4000:]


def recipe(folder: Path, model: Path, name: str, *, forgetful: bool) -> RunConfig:
    """Half a batch ahead, evaluations, a checkpoint every other step."""
    for part in ("train", "eval"):
        lines = [json.dumps({"prompt": f"{n} + 1 =", "answer": str(n + 1)}) for n in range(64)]
        (folder / f"{part}.jsonl").write_text("\n".join(lines) + "\n")
    values = {
        "run": {"name": name, "dir": str(folder / "runs"), "steps": STREAM.num_steps},
        "broker": {"heartbeat": 5},
        "model": {"path": str(model), "dtype": "float32"},
        "data": {
            "train": [{"path": str(folder / "train.jsonl")}],
            "eval": [{"path": str(folder / "eval.jsonl")}],
        },
        "reward": {"functions": [{"use": "exact_match"}]},
        "algorithm": {
            "group_size": STREAM.group_size,
            "groups_per_step": STREAM.groups_per_step,
            "max_staleness": 0.5,
        },
        "trainer": {"lr": 1e-3, "warmup_steps": 2, "micro_batch_tokens": 64},
        "weights": {"codec": "step", "keyframe_every": 3},
        "checkpoint": {"every": 2, "keep": 2, **({"journal_bytes": 0} if forgetful else {})},
        "eval": {"every": 3, "prompts": EVAL_PROMPTS},
        "deadlines": {
            "warn_after": 5.0,
            "stall": 60.0,
            "on_deadline": "stop",
            "reissue_grace": 600.0,  # what the trainer loses must not be made good by asking again
        },
    }
    return RunConfig.model_validate(values)
