"""Everything of a run but the trainer, in a few lines: credits in, scored trajectories out.

Tokens and rewards are a function of seed and rollout id, so that a duplicate repeats its original.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np

from infra.amqp.codec import decode, encode
from infra.amqp.connection import Broker
from infra.amqp.message import Delivery, Outgoing
from schemas.arrays import to_runs
from schemas.control import RunState, Wanted, WeightsPublished
from schemas.headers import Headers, Purpose, rollout_id_of
from schemas.tokens import Tokens
from schemas.work import (
    Credit,
    Failure,
    FailureKind,
    Progress,
    RewardData,
    Rollout,
    RolloutStatus,
    Trajectory,
    Turn,
    TurnKind,
)

NUM_PROMPT = 4
VOCAB_SIZE = 128


class Runs(Protocol):
    """What `working` keeps at work."""

    async def run(self) -> None:
        """Work until cancelled."""


W = TypeVar("W", bound=Runs)


def seed_of(rollout_id: str) -> int:
    """The same on every machine."""
    return int.from_bytes(hashlib.sha256(rollout_id.encode()).digest()[:4], "big")


def coin(rollout_id: str) -> float:
    """A reward of 0 or 1."""
    return float(seed_of(rollout_id) % 2)


def trajectory(credit: Credit, index: int, *, version: int, reward: float) -> Trajectory:
    """A scored rollout of one turn, its tokens sampled under `version`."""
    rollout_id = rollout_id_of(credit.purpose, credit.group, index)
    rng = np.random.default_rng(seed_of(rollout_id))
    num_sampled = int(rng.integers(3, 12))
    total = NUM_PROMPT + num_sampled
    logprobs = np.zeros(total, dtype=np.float32)
    logprobs[NUM_PROMPT:] = np.log(rng.uniform(0.2, 0.9, num_sampled)).astype(np.float32)
    tokens = Tokens(
        mask=((0, NUM_PROMPT), (1, num_sampled)),
        versions=to_runs([-1] * NUM_PROMPT + [version] * num_sampled),
        token_ids=rng.integers(3, VOCAB_SIZE, total).astype(np.int32),
        logprobs=logprobs,
    )
    rollout = Rollout(
        rollout_id=rollout_id,
        group=credit.group,
        index=index,
        purpose=credit.purpose,
        row=0,
        status=RolloutStatus.COMPLETED,
        finish_reason="stop",
        worker="world",
        agent="single_turn",
        prompt_hash="0" * 64,
        reward_data=RewardData(),
        progress=Progress(
            num_prompt_tokens=NUM_PROMPT,
            turns=(
                Turn(kind=TurnKind.PROMPT, start=0, stop=NUM_PROMPT),
                Turn(kind=TurnKind.ASSISTANT, start=NUM_PROMPT, stop=total),
            ),
            tokens=tokens,
        ),
    )
    return Trajectory(reward=reward, rewards={"coin": reward}, rollout=rollout)


def failure(credit: Credit, index: int, *, error: str = "ZeroDivisionError") -> Failure:
    """What comes instead of a member that cannot be scored."""
    return Failure(
        rollout_id=rollout_id_of(credit.purpose, credit.group, index),
        group=credit.group,
        index=index,
        purpose=credit.purpose,
        attempt=credit.attempt,
        stage="reward",
        kind=FailureKind.DATA,
        error=error,
    )


def headers_of(credit: Credit, index: int, *, run_id: str) -> Headers:
    """Of whatever comes back for a member."""
    return Headers(
        run_id=run_id,
        purpose=credit.purpose,
        group=credit.group,
        index=index,
        rollout_id=rollout_id_of(credit.purpose, credit.group, index),
        attempt=credit.attempt,
        min_version=credit.min_version,
    )


def message_of(model: Trajectory | Failure, headers: Headers, *, app_id: str) -> Outgoing:
    """As a reward worker sends it to the trainer."""
    envelope, body = encode(
        model,
        app_id=app_id,
        correlation_id=headers.rollout_id,
        headers=headers.to_amqp(),
        message_id=f"{type(model).__name__}:{headers.rollout_id}:{headers.attempt}:0",
    )
    exchange, key = "dead", ""
    if isinstance(model, Trajectory):
        exchange, key = "work", "evaluation" if headers.purpose is Purpose.EVAL else "trajectory"
    return Outgoing(exchange=exchange, routing_key=key, envelope=envelope, body=body)


@dataclass
class World:
    """Producers, rollout workers and reward workers in one."""

    broker: Broker
    reward: Callable[[str], float] = coin
    fails: Callable[[str], bool] = lambda rollout_id: False
    copies: Callable[[str], int] = lambda rollout_id: 1
    delay_s: float = 0.0
    version: int = -1
    states: list[RunState] = field(default_factory=list)
    published: list[WeightsPublished] = field(default_factory=list)
    credits: list[Credit] = field(default_factory=list)
    heard: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen())
            with contextlib.closing(self.broker.subscribe("credits", prefetch=32)) as credits:
                async for delivery in credits:
                    tasks.create_task(self._answer(delivery))

    async def until(self, condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Wait until something was heard."""
        async with asyncio.timeout(timeout_s), self.heard:
            await self.heard.wait_for(condition)

    @property
    def over(self) -> bool:
        """Whether the trainer said that the run is over."""
        return any(state.wanted is Wanted.STOPPED for state in self.states)

    async def _listen(self) -> None:
        with contextlib.closing(self.broker.control()) as control:
            async for delivery in control:
                await self._hear(delivery)

    async def _hear(self, delivery: Delivery) -> None:
        if delivery.envelope.type == "RunState":
            state = decode(delivery, delivery.body, RunState)
            self.states.append(state)
            self.version = max(self.version, state.version)  # its broadcast may have been missed
        if delivery.envelope.type == "WeightsPublished":
            weights = decode(delivery, delivery.body, WeightsPublished)
            self.published.append(weights)
            self.version = max(self.version, weights.version)
        async with self.heard:
            self.heard.notify_all()

    async def _answer(self, delivery: Delivery) -> None:
        credit = decode(delivery, delivery.body, Credit)
        self.credits.append(credit)
        run_id = str(delivery.envelope.headers["run_id"])
        await self.until(lambda: self.version >= credit.min_version)
        for index in credit.indexes:
            await self.deliver(credit, index, run_id=run_id)
        self.broker.ack(delivery)
        async with self.heard:
            self.heard.notify_all()

    async def deliver(self, credit: Credit, index: int, *, run_id: str) -> None:
        """One member comes back, or fails."""
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        evaluating = credit.purpose is Purpose.EVAL
        version = credit.group if evaluating else max(self.version, credit.min_version)
        scored = trajectory(credit, index, version=version, reward=0.0)
        rollout_id = scored.rollout.rollout_id
        scored = scored.model_copy(update={"reward": self.reward(rollout_id)})
        headers = headers_of(credit, index, run_id=run_id)
        if self.fails(rollout_id):
            await self.send(failure(credit, index), headers)
            return
        for _ in range(self.copies(rollout_id)):
            await self.send(scored, headers)

    async def send(self, model: Trajectory | Failure, headers: Headers) -> None:
        """Publish a message as a role would."""
        await self.broker.publish(message_of(model, headers, app_id=self.broker.app_id))


@contextlib.asynccontextmanager
async def working(world: W) -> AsyncIterator[W]:
    """A world at work, for the time of a block; its failure is the block's."""
    task = asyncio.create_task(world.run())
    try:
        yield world
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
