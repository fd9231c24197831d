"""Workers of this process on a real broker, whose engine samples by rule and stops where told."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from consumers.rollout.agents.loop import AgentLoop
from consumers.rollout.floor import Floor
from consumers.rollout.limits import Limits
from consumers.rollout.tools.box import ToolBox
from consumers.rollout.worker import serve_rollouts
from infra.amqp.codec import decode, encode
from infra.amqp.connection import Broker
from infra.amqp.message import Outgoing
from infra.amqp.topology import WORK_KEYS
from infra.roles.control import listen
from infra.runs.folder import RunFolder
from infra.weights.store import WeightStore
from schemas.config import RunConfig
from schemas.control import WeightsPublished
from schemas.headers import Headers
from schemas.work import Failure, Rollout, Snapshot
from tests.factories.contexts import role_context
from tests.unit.rollout.worker_fakes import (
    EOS,
    PROMPT,
    RUN_ID,
    FirstTurnCalls,
    PlainRenderer,
    RuleEngine,
)

PATIENCE_S = 60.0


def whole(length: int) -> tuple[int, ...]:
    """Tokens of a rollout of this length, prompt included, however often it was cut."""
    return (*PROMPT, *range(10, 10 + length - 1), EOS)


class Hand:
    """One worker."""

    def __init__(self, config: RunConfig, broker: Broker, name: str, **limits: Any) -> None:
        self.broker = broker
        self.engine = RuleEngine()
        self.limits = Limits(
            **{"slots": 4, "idle_max_s": 0.05, "sweep_s": 0.02, "grace_s": 10.0, **limits}
        )
        self.context = role_context(config, broker, worker=name, run_id=RUN_ID)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def floor(self) -> Floor:
        """Its inside."""
        floor = getattr(self.context.describe, "__self__", None)
        assert isinstance(floor, Floor)
        return floor

    @property
    def ended(self) -> "asyncio.Task[None]":
        """Its body."""
        return self._tasks[0]

    @property
    def served(self) -> int:
        """Its version, or -1 before it serves one."""
        return self.floor.swap.version if self.context.describe is not None else -1

    async def start(self) -> None:
        """Begin; returns once it serves, or has ended already."""
        body = serve_rollouts(
            self.context,
            limits=self.limits,
            build_engine=lambda _config: self.engine,
            make_loop=lambda _context, engine, gate: AgentLoop(
                engine=engine,
                renderer=PlainRenderer(),  # type: ignore[arg-type]
                parser=FirstTurnCalls(),
                tools=ToolBox({}),
                worker=self.context.worker,
                admit=gate.admit,
            ),
        )
        self._tasks = [asyncio.create_task(one) for one in (body, listen(self.context))]
        async with asyncio.timeout(PATIENCE_S):
            while self.served < 0 and not self.ended.done():
                await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """SIGTERM."""
        self.context.stop.set()
        async with asyncio.timeout(PATIENCE_S):
            await self.ended
        await self._gone()

    async def kill(self) -> None:
        """Gone without a word; the broker takes its deliveries back."""
        await self._gone()
        await self.broker.close(0.0)

    async def _gone(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def at(self, rollout_id: str, position: int) -> bool:
        """Whether it has sampled so much of a rollout, counted from its beginning."""
        held = self.floor.slots.get(rollout_id) if self.context.describe is not None else None
        state = held.state if held is not None else None
        return state is not None and len(state.token_ids) - len(PROMPT) == position


class Yard:
    """Weights, queues, and what came of the work.

    Args:
        folder: Of the run.
        broker: The test's own connection.
    """

    def __init__(self, folder: Path, broker: Broker) -> None:
        self.broker = broker
        (folder / "model").mkdir()
        self.config = RunConfig.model_validate(
            {
                "run": {"name": broker.run, "dir": str(folder), "steps": 1},
                "model": {"path": str(folder / "model")},
                "data": {"train": [{"path": "unused.jsonl"}]},
                "reward": {"functions": [{"use": "unused"}]},
                "trainer": {"lr": 1e-4},
            }
        )
        self.store = WeightStore.at(RunFolder.of(self.config).weights(self.config))
        self.rollouts: dict[str, list[Rollout]] = {}
        self.failures: list[Failure] = []
        self.hands: list[Hand] = []

    def hand(self, broker: Broker, name: str, **limits: Any) -> Hand:
        """A worker on a connection of its own, not started."""
        self.hands.append(Hand(self.config, broker, name, **limits))
        return self.hands[-1]

    async def close(self) -> None:
        """End every worker that is still there."""
        for hand in self.hands:
            await hand._gone()

    async def publish_weights(self, version: int, *, broadcast: bool = True) -> WeightsPublished:
        """One small tensor in the store."""
        published = await asyncio.to_thread(
            self.store.publish,
            {"weight": torch.full((2,), float(version))},
            version=version,
            run_id=RUN_ID,
            incarnation=1,
            step=version,
            dtype="float32",
        )
        if broadcast:
            headers = {"run_id": RUN_ID}
            await self.broker.publish(
                _message("sync", "", published, headers, f"weights:{version}")
            )
        return published

    async def put(self, queue: str, model: Any, **headers: Any) -> None:
        """A task or a snapshot, as a producer or another worker would."""
        await self.broker.publish(self.message(queue, model, **headers))

    @staticmethod
    def message(queue: str, model: Any, **headers: Any) -> Outgoing:
        """What `put` publishes."""
        task = model.task if isinstance(model, Snapshot) else model
        ours = Headers(
            run_id=RUN_ID,
            purpose=task.purpose,
            group=task.group,
            index=task.index,
            rollout_id=task.rollout_id,
            **headers,
        )
        name = f"{type(model).__name__}:{task.rollout_id}"
        return _message("work", WORK_KEYS[queue], model, ours.to_amqp(), name)

    async def until(self, reached: Callable[[], object], what: str) -> None:
        """Give the workers time; nothing is taken from the queues."""
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while not reached():
            if asyncio.get_running_loop().time() > deadline:
                raise AssertionError(f"{what}: not within {PATIENCE_S:.0f} s")
            await asyncio.sleep(0.01)

    async def collect(self, number: int, *, failures: int = 0) -> None:
        """Take what comes until so many different rollouts and failures are there."""
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while len(self.rollouts) < number or len(self.failures) < failures:
            if asyncio.get_running_loop().time() > deadline:
                raise AssertionError(f"only {sorted(self.rollouts)}, {self.failures}")
            if not await self.take():
                await asyncio.sleep(0.01)

    async def take(self) -> int:
        """Take what is there now; returns how many."""
        came = await self.broker.take("rollouts", "failures", limit=64)
        for delivery in came:
            if delivery.queue == "rollouts":
                rollout = decode(delivery, delivery.body, Rollout)
                self.rollouts.setdefault(rollout.rollout_id, []).append(rollout)
            else:
                self.failures.append(decode(delivery, delivery.body, Failure))
            self.broker.ack(delivery)
        return len(came)

    async def nothing_left(self) -> None:
        """Every message was acknowledged. All workers must have ended: what they held is back."""
        await self.take()
        for queue in ("prompts", "eval_prompts", "cancel_queue"):
            assert (await self.broker.depth(queue))[0] == 0, queue

    def tokens(self, rollout_id: str) -> tuple[int, ...]:
        """Of the only result of this rollout."""
        (rollout,) = self.rollouts[rollout_id]
        return tuple(rollout.progress.tokens.token_ids)


def _message(exchange: str, key: str, model: Any, headers: Any, name: str) -> Outgoing:
    envelope, body = encode(
        model, app_id="test/0", correlation_id=name, headers=headers, message_id=name
    )
    return Outgoing(exchange=exchange, routing_key=key, envelope=envelope, body=body)
