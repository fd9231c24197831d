"""The path of a rollout without engine and trainer: credit, task, rollout, trajectory.

Real producer, rollout worker(s) and reward role in processes of their own, a real broker, an
engine that answers at once; this process plays the trainer: it issues credits and takes
trajectories. CPU time is read from the kernel, per process, over the measured rollouts only. How
it splits is sampled afterwards, over a few rollouts more: sampling costs some percent itself.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from infra.amqp.codec import decode, encode
from infra.amqp.connection import Broker
from infra.amqp.local_broker import LocalBroker
from infra.amqp.message import Outgoing
from infra.runs.dataset_fingerprint import dataset_fingerprint
from infra.runs.folder import RunFolder
from infra.weights.store import WeightStore
from schemas.config import RunConfig
from schemas.control import RunState
from schemas.headers import Headers
from schemas.work import Credit, Trajectory
from tests.benchmarks.sampler import OPERATIONS

GROUP_SIZE = 8
RUN_ID = "bench"
SERVING = "serving version 0"
"""What a worker logs when it begins to take work."""
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Figures:
    """CPU seconds and wall seconds over `num_rollouts`."""

    num_rollouts: int
    wall_s: float
    cpu_s: dict[str, float]
    samples: dict[str, dict[str, int]] = field(default_factory=dict)
    bodies: dict[str, int] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Rollouts per second."""
        return self.num_rollouts / self.wall_s

    @property
    def cpu_ms(self) -> dict[str, float]:
        """CPU milliseconds per rollout, by role."""
        return {role: 1000 * s / self.num_rollouts for role, s in self.cpu_s.items()}


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, its reaped and living children included."""
    total = 0.0
    for path in Path("/proc").iterdir():
        if not path.name.isdigit():
            continue
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(path.name) == pid:
            total += sum(int(value) for value in fields[11:15])
        elif int(fields[1]) == pid:
            total += sum(int(value) for value in fields[11:13])
    return total / _TICKS


def recipe(folder: Path, *, workers: int, num_tokens: int) -> RunConfig:
    """A recipe around a tiny model and a thousand short prompts."""
    from tests.factories.models import build

    model = folder / "model"
    build(model, tied=False, seed=0)
    rows = [{"prompt": f"{n:04d}+1", "answer": str(n + 1)} for n in range(1000)]
    data = folder / "train.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return RunConfig.model_validate(
        {
            "run": {"name": "bench", "dir": str(folder / "runs"), "steps": 1},
            "model": {"path": str(model), "dtype": "float32"},
            "data": {"train": [{"path": str(data)}]},
            "rollout": {
                "workers": workers,
                "slots": 32,
                "max_response_tokens": max(16, num_tokens),
                "max_turn_tokens": max(16, num_tokens),
            },
            "reward": {"functions": [{"use": "tests.benchmarks.role:score"}]},
            "algorithm": {"group_size": GROUP_SIZE},
            "trainer": {"lr": 1e-3},
        }
    )


class Sink:
    """Plays the trainer: credits out, trajectories in."""

    def __init__(self, config: RunConfig, broker: Broker) -> None:
        self._config = config
        self._broker = broker
        self.in_flight = 32
        """Groups."""
        self._fingerprint = dataset_fingerprint(config.data.train)
        self._next_group = 0
        self._missing: dict[int, int] = {}
        self.num_done = 0
        self.bodies: dict[str, int] = {}

    async def announce(self) -> None:
        """Repeat the run's state."""
        state = RunState(run_id=RUN_ID, number=1, version=0, num_steps=1)
        while True:
            envelope, body = encode(
                state, app_id="trainer/bench", correlation_id="", headers={"run_id": RUN_ID}
            )
            await self._broker.publish(
                Outgoing(exchange="sync", routing_key="", envelope=envelope, body=body)
            )
            await asyncio.sleep(2.0)

    async def issue(self) -> None:
        """One more group."""
        group, self._next_group = self._next_group, self._next_group + 1
        self._missing[group] = GROUP_SIZE
        credit = Credit(
            group=group,
            indexes=tuple(range(GROUP_SIZE)),
            dataset_fingerprint=self._fingerprint,
            seed=self._config.run.seed,
            group_size=GROUP_SIZE,
        )
        envelope, body = encode(
            credit,
            app_id="trainer/bench",
            correlation_id=str(group),
            headers=Headers(run_id=RUN_ID, group=group).to_amqp(),
        )
        await self._broker.publish(
            Outgoing(exchange="work", routing_key="credit", envelope=envelope, body=body)
        )

    async def run(self, num_rollouts: int) -> None:
        """Until that many more trajectories arrived."""
        goal = self.num_done + num_rollouts
        subscription = self._broker.subscribe("trajectories", prefetch=256)
        for _ in range(self.in_flight - len(self._missing)):
            await self.issue()
        async for delivery in subscription:
            trajectory = decode(delivery, delivery.body, Trajectory)
            self.bodies["trajectory"] = len(delivery.body)
            self._broker.ack(delivery)
            self.num_done += 1
            group = trajectory.rollout.group
            self._missing[group] -= 1
            if not self._missing[group]:
                del self._missing[group]
                await self.issue()
            if self.num_done >= goal:
                break
        await subscription.close()


class Session:
    """Broker, producer, reward role and rollout workers; use as a context manager.

    Args:
        workers: How many there will be at most.
        num_tokens: That the engine answers with.
    """

    def __init__(self, *, workers: int, num_tokens: int) -> None:
        self._workers, self._num_tokens = workers, num_tokens
        self._scratch = tempfile.TemporaryDirectory()
        self._folder = Path(self._scratch.name)
        self._node = LocalBroker(self._folder / "broker")
        self._roles: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        self._config = recipe(self._folder, workers=self._workers, num_tokens=self._num_tokens)
        (self._folder / "config.json").write_text(self._config.model_dump_json())
        self._node.start(timeout_s=120.0)
        _publish_first_version(self._config)
        for name in ("producer", "reward"):
            self._start(name)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._roles.values():
            process.kill()
            process.wait()
        self._node.kill()
        self._scratch.cleanup()

    def _start(self, name: str) -> None:
        self._roles[name] = _spawn(name, self._folder, self._node.url, self._num_tokens)

    async def drive(self, nums_workers: Sequence[int], num_rollouts: int) -> list[Figures]:
        """Measure with so many workers, one after the other; the numbers rise."""
        broker = Broker(self._node.url, run=self._config.run.name, app_id="trainer/bench")
        await broker.start()
        sink = Sink(self._config, broker)
        announcing = asyncio.create_task(sink.announce())
        figures = []
        try:
            for num_workers in nums_workers:
                names = [f"rollout-{n + 1}" for n in range(num_workers)]
                for name in names:
                    if name not in self._roles:
                        self._start(name)
                await self._ready(names)
                sink.in_flight = max(32, 8 * num_workers)
                async with asyncio.timeout(120):
                    await sink.run(max(250, num_rollouts // 10))
                figures.append(await self._measure(sink, num_rollouts))
            await self._sample(sink, num_rollouts // 2)
        finally:
            announcing.cancel()
            await broker.close(1.0)
        samples = _stop(self._roles, self._folder)
        return [*figures[:-1], replace(figures[-1], samples=samples)]

    async def _ready(self, names: Sequence[str]) -> None:
        """Importing what a worker needs is not what is measured."""
        async with asyncio.timeout(240):
            while not all(SERVING in (self._folder / f"{n}.log").read_text() for n in names):
                await asyncio.sleep(0.2)

    async def _measure(self, sink: Sink, num_rollouts: int) -> Figures:
        pids = {name: process.pid for name, process in self._roles.items()}
        pids["broker"] = self._node.pids[0]
        before = {name: cpu_seconds(pid) for name, pid in pids.items()}
        own, started = time.process_time(), time.monotonic()
        async with asyncio.timeout(600):
            await sink.run(num_rollouts)
        wall_s, own = time.monotonic() - started, time.process_time() - own
        spent = {name: cpu_seconds(pid) - before[name] for name, pid in pids.items()}
        cpu_s = {name: spent[name] for name in ("producer", "reward", "broker")}
        cpu_s["rollout"] = sum(s for name, s in spent.items() if name.startswith("rollout"))
        cpu_s["(trainer's side)"] = own
        return Figures(num_rollouts, wall_s, cpu_s, bodies=dict(sink.bodies))

    async def _sample(self, sink: Sink, num_rollouts: int) -> None:
        for process in self._roles.values():
            process.send_signal(signal.SIGUSR1)
        async with asyncio.timeout(600):
            await sink.run(num_rollouts)


def _spawn(name: str, folder: Path, url: str, num_tokens: int) -> "subprocess.Popen[bytes]":
    role = name.partition("-")[0]
    arguments = [role, folder / "config.json", name, folder / f"{name}.json", num_tokens]
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.role", *map(str, arguments)],
            env={**os.environ, "WARREN_BROKER_URL": url, "OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def _stop(roles: dict[str, "subprocess.Popen[bytes]"], folder: Path) -> dict[str, dict[str, int]]:
    samples: dict[str, dict[str, int]] = {}
    for process in roles.values():
        process.terminate()
    for name, process in roles.items():
        process.wait(60)
        if process.returncode:
            raise RuntimeError(f"{name}: {(folder / f'{name}.log').read_text()[-2000:]}")
        counts = json.loads((folder / f"{name}.json").read_text())["operations"]
        total = samples.setdefault(name.partition("-")[0], dict.fromkeys(OPERATIONS, 0))
        for operation, count in counts.items():
            total[operation] += count
    return samples


def _publish_first_version(config: RunConfig) -> None:
    from safetensors.torch import load_file

    tensors = load_file(Path(config.model.path) / "model.safetensors")
    store = WeightStore.at(RunFolder.of(config).weights(config))
    store.publish(tensors, version=0, run_id=RUN_ID, incarnation=1, step=0, dtype="float32")
