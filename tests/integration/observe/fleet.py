"""Simulated processes of a run: they send what real ones would, and do nothing else."""

import asyncio
from typing import Any

from infra.amqp.codec import encode
from infra.amqp.connection import Broker
from infra.amqp.message import Outgoing
from schemas.base import Message
from schemas.control import Heartbeat, RunState

PERIOD_S = 1.0


class Fleet:
    """Beats until it is stopped.

    Args:
        broker: Of the run; connecting it has made the run exist.
        num_rollout: Rollout workers.
    """

    def __init__(self, broker: Broker, *, num_rollout: int = 2) -> None:
        self._broker = broker
        self.count = 0
        self.roles = {"trainer": 1, "producer": 1, "rollout": num_rollout, "reward": 1}
        self._task = asyncio.create_task(self._beat())

    async def stop(self) -> None:
        """Say nothing more."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _beat(self) -> None:
        while True:
            self.count += 1
            if self.roles.get("trainer"):
                await self.send("sync", RunState(run_id="a", number=self.count, **STATE))
            for role, number in self.roles.items():
                for n in range(1, number + 1):
                    name = role if role == "trainer" else f"{role}-{n}"
                    await self.send("events", beat(role, name, self.count))
            await asyncio.sleep(PERIOD_S)

    async def send(self, exchange: str, message: Message, *, body: bytes | None = None) -> None:
        """One message, or a body of any kind in its envelope."""
        envelope, encoded = encode(
            message, app_id="test/fleet", correlation_id="x", headers={"run_id": "a"}
        )
        await self._broker.emit(
            Outgoing(exchange=exchange, routing_key="", envelope=envelope, body=body or encoded)
        )


STATE: dict[str, Any] = {"incarnation": 1, "version": 11, "step": 42, "num_steps": 120}


def beat(role: str, name: str, count: int = 1, **fields: Any) -> Heartbeat:
    """As a real process of this role sends it."""
    known: dict[str, Any] = {
        "run_id": "a",
        "role": role,
        "worker": name,
        "host": "some-machine",
        "pid": 4711,
        "state": "running",
    }
    return Heartbeat.model_validate({**known, **OF_ROLE[role](count), **fields})


def _trainer(count: int) -> dict[str, Any]:
    books = {"issued": 90, "trained": 42, "filtered": 40, "open": 8, "balanced": 1}
    seconds = {"wait_s": 0.5 * count, "train_s": 0.4 * count, "publish_s": 0.1 * count}
    return {
        "counters": {"step": 42, "version": 11, **books, **seconds},
        "waiting_for": "batch of step 43: 3/8 groups ready · 40 rollouts of 8 groups missing",
        "waiting_s": 2.0,
        "trainer": {"num_steps": 120, "rewards": [0.1, 0.3, 0.6], "forecast": [4, 4]},
    }


def _rollout(count: int) -> dict[str, Any]:
    return {
        "version": 11,
        "slots": 32,
        "rollout_ids": [f"{n}.0" for n in range(20)],
        "counters": {"tokens_generated": 1000 * count, "interruptions": 7},
        "rollout": {
            "engine": "vllm",
            "versions": [[10, 5], [11, 15]],
            "ages": [12, 8, 0, 0, 0],
            "generating": 20,
        },
    }


def _reward(_count: int) -> dict[str, Any]:
    return {"reward": {"processes": 2, "queued": 0, "scoring": 1, "functions": ["exact"]}}


OF_ROLE = {
    "trainer": _trainer,
    "rollout": _rollout,
    "reward": _reward,
    "producer": lambda count: {"counters": {"credits": count}},
}
