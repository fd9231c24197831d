"""A tiny run without trainer: tasks in, worker processes, rollouts out, and an oracle."""

import asyncio
import copy
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from infra.amqp.codec import decode, encode
from infra.amqp.connection import Broker
from infra.amqp.message import Outgoing
from infra.weights.fingerprint import entries_of
from infra.weights.publication import Base, casted
from infra.weights.store import WeightStore
from schemas.chat import ChatMessage, Speaker
from schemas.control import WeightsPublished
from schemas.headers import Headers
from schemas.work import Failure, Rollout, Sampling
from tests.factories.models import build
from tests.factories.rollouts import make_task
from tests.integration.rollout import hanging_worker
from tests.warm import Child, be_rollout_worker

RUN_ID = "integration"
SLOTS = 6
MAX_RESPONSE = 123
ROOT = Path(__file__).resolve().parents[3]


class World:
    """One run's folder, weights and queues.

    Args:
        folder: Of everything.
        broker: The test's own connection.
        url: Of the broker, for the workers.
        make: Saves a random model with this seed into a folder.
        dtype: Of the model.
        warm: Workers are forked from a process that has all imported. Only those hang or creep.
    """

    def __init__(
        self,
        folder: Path,
        broker: Broker,
        url: str,
        *,
        make: Callable[[Path, int], Any] = lambda path, seed: build(path, tied=False, seed=seed),
        dtype: str = "float32",
        warm: bool = False,
    ) -> None:
        self._make = make
        self._warm = warm
        self._dtype = dtype
        self._base: Base | None = None
        self.sections: dict[str, Any] = {}
        self.folder = folder
        self.broker = broker
        self.url = url
        self.model = folder / "model"
        self.models = {0: make(self.model, 0)}
        self.store = WeightStore.at(folder / "runs" / broker.run / "weights")
        self.workers: dict[str, asyncio.subprocess.Process | Child] = {}
        self.rollouts: list[Rollout] = []
        self.failures: list[Failure] = []
        self.tasks: list[str] = []
        self._gate = folder / "gate"

    def build(self, version: int) -> None:
        """Random weights of their own, not published yet."""
        if version not in self.models:
            self.models[version] = self._make(self.folder / f"model-{version}", version)

    def nudge(self, version: int, names: Callable[[str], bool], share: float = 0.02) -> None:
        """A version that differs from the one before it in a share of the elements of the
        parameters that are named."""
        torch.manual_seed(version)
        self.models[version] = copy.deepcopy(self.models[version - 1])
        with torch.no_grad():
            for name, parameter in self.models[version].named_parameters():
                if names(name):
                    moved = torch.rand(parameter.shape) < share
                    parameter[moved] = parameter[moved] * 1.5

    def damage(self, version: int) -> None:
        """Flip a bit in every file of a version in the store."""
        (folder,) = Path(self.store.where).glob(f"v{version:08d}.*")
        for path in folder.iterdir():
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)

    async def publish_weights(
        self, version: int, *, keyframe: bool = True, told: bool = True
    ) -> WeightsPublished:
        """Put a version into the store and broadcast it: whole, and what changed since the one
        before.

        Args:
            version: With a model of its own if it has none yet.
            keyframe: Whether it is stored whole, too.
            told: Whether it is broadcast.
        """
        self.build(version)
        published, self._base = await asyncio.to_thread(self._publish, version, keyframe)
        if told:
            await self.tell(published)
        return published

    async def tell(self, published: WeightsPublished) -> None:
        """Broadcast it."""
        version = published.version
        await self._send("sync", "", published, {"run_id": RUN_ID}, f"weights:{version}")

    def _publish(self, version: int, keyframe: bool) -> tuple[WeightsPublished, Base]:
        tensors = casted(dict(self.models[version].state_dict()), self._dtype)
        published = self.store.publish(
            tensors,
            version=version,
            run_id=RUN_ID,
            incarnation=1,
            step=version,
            dtype=self._dtype,
            base=self._base,
            keyframe=keyframe,
            codec="step",
        )
        kept = {name: tensor.clone() for name, tensor in tensors.items()}
        return published, Base(version, kept, entries_of(kept))

    async def put_tasks(self, number: int) -> None:
        """Greedy single-turn tasks with prompts and lengths of their own."""
        for group in range(len(self.tasks), len(self.tasks) + number):
            response = MAX_RESPONSE - 9 * (group % 8)  # so that they do not end together
            task = make_task(
                f"{group}.0",
                row=group,
                agent="single_turn",
                messages=(ChatMessage(role=Speaker.USER, content=f"question {group}"),),
                sampling=Sampling(temperature=0.0),
                max_prompt_tokens=64,
                max_response_tokens=response,
                max_turn_tokens=response,
                max_turns=1,
            )
            headers = Headers(run_id=RUN_ID, group=group, index=0, rollout_id=task.rollout_id)
            await self._send("work", "prompt", task, headers.to_amqp(), f"task:{group}")
            self.tasks.append(task.rollout_id)

    async def _send(
        self, exchange: str, key: str, model: Any, headers: Any, message_id: str
    ) -> None:
        envelope, body = encode(
            model,
            app_id="test/0",
            correlation_id=message_id,
            headers=headers,
            message_id=message_id,
        )
        await self.broker.publish(
            Outgoing(exchange=exchange, routing_key=key, envelope=envelope, body=body)
        )

    async def start(
        self,
        name: str,
        *,
        module: str = "",
        hangs_after: int | None = None,
        creeps_after: int | None = None,
        **rollout: Any,
    ) -> None:
        """A worker process; output goes to `<name>.log`.

        Args:
            name: Of the worker.
            module: To be run instead of the role itself, with recipe and name.
            hangs_after: Steps after which its engine hangs.
            creeps_after: Steps after which its engine is slow, until `hurry`.
            rollout: Keys of [rollout].
        """
        path = self._recipe(name, rollout)
        log = self.folder / f"{name}.log"
        env = {"WARREN_BROKER_URL": self.url, "OMP_NUM_THREADS": "1"}
        if self._warm:
            call, *more = be_rollout_worker, name
            if hangs_after is not None:
                call, *more = hanging_worker.main, name, str(hangs_after)
            elif creeps_after is not None:
                call, *more = hanging_worker.main, name, str(creeps_after), str(self._gate)
            self.workers[name] = Child(call, str(path), *more, log=log, env=env)
            return
        code = (
            "import sys, json; from pathlib import Path; "
            "from schemas.config import RunConfig; from consumers.rollout.worker import run; "
            "config = RunConfig.model_validate(json.loads(Path(sys.argv[1]).read_text())); "
            "sys.exit(run(config, worker=sys.argv[2]))"
        )
        with log.open("ab") as output:
            self.workers[name] = await asyncio.create_subprocess_exec(
                sys.executable,
                *(["-m", module] if module else ["-c", code]),
                str(path),
                name,
                cwd=ROOT,
                stdout=output,
                stderr=output,
                env={**os.environ, **env},
            )

    def _recipe(self, name: str, rollout: dict[str, Any]) -> Path:
        recipe = {
            "run": {"name": self.broker.run, "dir": str(self.folder / "runs"), "steps": 1},
            "broker": {"heartbeat": 10},
            "model": {"path": str(self.model), "dtype": self._dtype},
            "data": {"train": [{"path": "unused.jsonl"}]},
            "rollout": {
                "slots": SLOTS,
                "max_prompt_tokens": 64,
                "max_response_tokens": MAX_RESPONSE,
                "grace": 20,
                "engine_options": {"device": "cpu", "threads": 1},
                **rollout,
            },
            "reward": {"functions": [{"use": "unused"}]},
            "trainer": {"lr": 1e-4},
            **self.sections,
        }
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(recipe))
        return path

    def hurry(self) -> None:
        """Nobody creeps any longer."""
        self._gate.touch()

    async def stop(self, name: str, number: signal.Signals = signal.SIGTERM) -> int:
        """Signal a worker and wait for its exit code."""
        process = self.workers.pop(name)
        process.send_signal(number)
        return await self._ended(process)

    async def ended(self, name: str) -> int:
        """Wait for the end of a worker that nobody tells to leave."""
        return await self._ended(self.workers.pop(name))

    async def _ended(self, process: asyncio.subprocess.Process | Child) -> int:
        if isinstance(process, Child):
            return await asyncio.to_thread(process.wait, 120)
        return await asyncio.wait_for(process.wait(), 60)

    async def close(self) -> None:
        """End every worker that still runs."""
        for name in list(self.workers):
            await self.stop(name, signal.SIGKILL)

    async def collect(self, reached: Callable[[], bool]) -> None:
        """Take rollouts and failures until `reached`; a stuck fleet fails with its logs."""
        deadline = asyncio.get_running_loop().time() + 300
        while not reached():
            if asyncio.get_running_loop().time() > deadline:
                raise AssertionError(f"missing {self.missing()}\n{self.logs()}")
            came = await self.broker.get("rollouts")
            if came is not None:
                self.rollouts.append(decode(came, came.body, Rollout))
                self.broker.ack(came)
                continue
            dead = await self.broker.get("failures")
            if dead is not None:
                self.failures.append(decode(dead, dead.body, Failure))
                self.broker.ack(dead)
                continue
            await asyncio.sleep(0.02)

    def missing(self) -> list[str]:
        """Tasks without a rollout."""
        return sorted(set(self.tasks) - {rollout.rollout_id for rollout in self.rollouts})

    def repeated(self) -> list[str]:
        """Ids of rollouts that came more than once."""
        counts = Counter(rollout.rollout_id for rollout in self.rollouts)
        return [name for name, count in counts.items() if count > 1]

    def logs(self) -> str:
        """What the workers said."""
        return "\n".join(
            f"== {path.name}\n{path.read_text()[-6000:]}"
            for path in sorted(self.folder.glob("*.log"))
        )

    def wrong_tokens(self, rollout: Rollout) -> list[int]:
        """Positions whose token is not what the model of its version picks greedily.

        One full forward pass of Hugging Face's model per version: no cache, no engine, no cuts.
        """
        tokens = rollout.progress.tokens
        ids = torch.tensor(tokens.token_ids.copy()).long()[None]
        wrong = []
        for version in {int(v) for v in tokens.version_array if v >= 0}:
            with torch.no_grad():
                logits = self.models[version](ids).logits[0]
            for position in range(1, len(tokens)):
                if tokens.version_array[position] == version:
                    row = logits[position - 1]
                    if row[ids[0, position]] < row.max() - 1e-4:
                        wrong.append(position)
        return wrong
