"""Drives one worker through many syncs, and keeps the books of its tokens."""

import asyncio
import itertools
import json
import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.amqp.codec import decode, encode
from infra.amqp.connection import Broker
from infra.amqp.message import Outgoing
from infra.runs.folder import RunFolder
from infra.weights.store import WeightStore
from schemas.chat import ChatMessage, Speaker
from schemas.config import RunConfig
from schemas.control import RunState
from schemas.headers import Headers
from schemas.work import Rollout, Sampling
from tests.factories.rollouts import make_task

IN_FLIGHT = 64
RUN_ID = "bench"
SERVING = "serving version 0"
_LENGTHS = (150, 450)
_CONTEXT = 512
_PERIOD_S = 1.0
"""Between a first token under new weights and the next sync, at least."""
_ANNOUNCE_S = 5.0
_PATIENCE_S = 240.0


@dataclass(frozen=True)
class Course:
    """What came of one mode."""

    syncs: list[dict[str, float]]
    num_sampled: int
    """Tokens that left the engine."""
    num_kept: int
    """Sampled tokens of finished rollouts."""
    num_rollouts: int
    num_repeated: int
    """Rollouts that came more than once."""
    num_interrupted: int
    """Snapshots that were resumed."""
    num_reprefilled: int
    """Tokens of snapshots, when they were resumed."""
    num_recomputed: int
    """Tokens of what crossed a swap in the engine."""
    wall_s: float


def build_demo_model(folder: Path) -> tuple[Any, int]:
    """The demo's model, untaught, with room for long turns that seldom end by themselves; and its
    number of parameters."""
    import torch

    from infra.recipes.demo.task import EOS, TOKEN_IDS
    from infra.recipes.demo.tokenizer import save_tokenizer
    from infra.recipes.demo.warmup import build_model

    model = build_model(0)
    model.config.max_position_embeddings = _CONTEXT
    with torch.no_grad():
        model.lm_head.weight.mul_(50)
        model.lm_head.weight[TOKEN_IDS[EOS]] = 0
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return model, sum(parameter.numel() for parameter in model.parameters())


class Play:
    """Producer, trainer and reward worker of one run.

    Args:
        folder: Of the run.
        model_folder: Where the model lies.
        model: Its weights; each version is a little different.
        engine: Of the worker.
        on_sync: Of the worker.
        url: Of the broker.
    """

    def __init__(
        self, folder: Path, model_folder: Path, model: Any, *, engine: str, on_sync: str, url: str
    ) -> None:
        folder.mkdir()
        self._folder, self._model, self._url = folder, model, url
        self._config = RunConfig.model_validate(
            {
                "run": {"name": f"{engine}-{on_sync}", "dir": str(folder), "steps": 1},
                "model": {"path": str(model_folder), "dtype": "float32"},
                "data": {"train": [{"path": "unused.jsonl"}]},
                "rollout": {
                    "engine": engine,
                    "on_sync": on_sync,
                    "slots": IN_FLIGHT,
                    "max_prompt_tokens": 16,
                    "max_response_tokens": _LENGTHS[1],
                    "max_turn_tokens": _LENGTHS[1],
                },
                "reward": {"functions": [{"use": "unused"}]},
                "trainer": {"lr": 1e-4},
            }
        )
        self._store = WeightStore.at(RunFolder.of(self._config).weights(self._config))
        self._log = folder / "worker.log"
        self._drawn = random.Random(0)
        self._num_put = self._version = 0
        self._rollouts: list[Rollout] = []
        self._feeding = True

    async def run(self, num_syncs: int) -> Course:
        """Let it be interrupted so many times, then let everything end."""
        self._broker = Broker(self._url, run=self._config.run.name, app_id="bench/0")
        await self._broker.start()
        await self._publish(0)
        worker = self._spawn()
        try:
            await self._until_logged(SERVING, worker)
            began = time.monotonic()
            playing = asyncio.create_task(self._feed_and_collect())
            announcing = asyncio.create_task(self._announce())
            for version in range(1, num_syncs + 1):
                await asyncio.sleep(_PERIOD_S + self._drawn.random())
                await self._publish(version)
                await self._until_logged(f"version {version - 1} -> {version} ", worker)
            await asyncio.sleep(_PERIOD_S)
            self._feeding = False
            async with asyncio.timeout(_PATIENCE_S):
                await playing
            wall_s = time.monotonic() - began
            announcing.cancel()
            worker.terminate()
            await asyncio.to_thread(worker.wait, 60)
        finally:
            worker.kill()
            await asyncio.to_thread(worker.wait)
            await self._broker.close(1.0)
        return self._course(wall_s)

    def _course(self, wall_s: float) -> Course:
        notes = json.loads((self._folder / "notes.json").read_text())
        progress = [rollout.progress for rollout in self._rollouts]
        names = {rollout.rollout_id for rollout in self._rollouts}
        return Course(
            syncs=[sync for sync in notes["syncs"] if sync["version"]],
            num_sampled=notes["num_tokens"],
            num_kept=sum(one.tokens.num_sampled for one in progress),
            num_rollouts=len(names),
            num_repeated=len(self._rollouts) - len(names),
            num_interrupted=sum(len(one.interruptions) for one in progress),
            num_reprefilled=sum(one.num_reprefilled for one in progress),
            num_recomputed=notes["num_recomputed"],
            wall_s=wall_s,
        )

    def _spawn(self) -> "subprocess.Popen[bytes]":
        recipe = self._folder / "config.json"
        recipe.write_text(self._config.model_dump_json())
        arguments = [recipe, "rollout-1", self._folder / "notes.json"]
        with self._log.open("wb") as log:
            return subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.benchmarks.interruption.worker"),
                    *map(str, arguments),
                ],
                env={**os.environ, "WARREN_BROKER_URL": self._url, "OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    async def _until_logged(self, words: str, worker: "subprocess.Popen[bytes]") -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while words not in self._log.read_text():
            if worker.poll() is not None or time.monotonic() > deadline:
                said = self._log.read_text()[-3000:]
                raise RuntimeError(f"the worker has not said {words!r}, but:\n{said}")
            await asyncio.sleep(0.02)

    async def _feed_and_collect(self) -> None:
        """Keep as many tasks waiting as are in flight, until fed no more and all have come."""
        while self._feeding or len(self._rollouts) < self._num_put:
            while self._feeding and self._num_put - len(self._rollouts) < 2 * IN_FLIGHT:
                await self._put_task()
            came = await self._broker.take("rollouts", limit=IN_FLIGHT)
            for delivery in came:
                self._rollouts.append(decode(delivery, delivery.body, Rollout))
                self._broker.ack(delivery)
            if not came:
                await asyncio.sleep(0.05)

    async def _announce(self) -> None:
        """Repeat the run's state, as trainers do."""
        for number in itertools.count(1):
            state = RunState(run_id=RUN_ID, number=number, version=self._version, num_steps=1)
            await self._send("sync", "", state, {"run_id": RUN_ID}, "state")
            await asyncio.sleep(_ANNOUNCE_S)

    async def _put_task(self) -> None:
        group, self._num_put = self._num_put, self._num_put + 1
        length = self._drawn.randint(*_LENGTHS)
        task = make_task(
            f"{group}.0",
            row=group,
            agent="single_turn",
            messages=(ChatMessage(role=Speaker.USER, content=f"A:{group % 100:02d}+58=?"),),
            sampling=Sampling(temperature=1.0, seed=0),
            max_prompt_tokens=16,
            max_response_tokens=length,
            max_turn_tokens=length,
            max_turns=1,
        )
        headers = Headers(run_id=RUN_ID, group=group, index=0, rollout_id=task.rollout_id)
        await self._send("work", "prompt", task, headers.to_amqp(), task.rollout_id)

    async def _publish(self, version: int) -> None:
        import torch

        generator = torch.Generator().manual_seed(version)
        tensors = {
            name: tensor + 1e-3 * torch.randn(tensor.shape, generator=generator)
            for name, tensor in self._model.state_dict().items()
        }
        published = await asyncio.to_thread(
            self._store.publish,
            tensors,
            version=version,
            run_id=RUN_ID,
            incarnation=1,
            step=version,
            dtype="float32",
        )
        self._version = version
        await self._send("sync", "", published, {"run_id": RUN_ID}, f"weights:{version}")

    async def _send(
        self, exchange: str, key: str, model: Any, headers: Any, message_id: str
    ) -> None:
        envelope, body = encode(model, app_id="bench/0", correlation_id=message_id, headers=headers)
        await self._broker.publish(
            Outgoing(exchange=exchange, routing_key=key, envelope=envelope, body=body)
        )


def settled(course: Course) -> list[dict[str, float]]:
    """The syncs that were seen to their first token.

    Raises:
        RuntimeError: There is none.
    """
    seen = [sync for sync in course.syncs if sync["first_token"]]
    if not seen:
        raise RuntimeError("no weight update was seen to its first token: nothing was generated")
    return seen
