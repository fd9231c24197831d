"""The reward role on a real broker: scores travel on, failures are told, nothing becomes 0."""

import asyncio
from contextlib import asynccontextmanager

import numpy as np
import pytest

from consumers.reward.worker import score_rollouts
from infra.amqp.codec import decode, encode
from infra.amqp.message import Outgoing
from infra.observe.waits import Waits
from schemas.config import RewardFunction, RunConfig
from schemas.headers import Headers, Purpose
from schemas.work import Failure, FailureKind, Trajectory
from tests.factories.contexts import role_context
from tests.unit.reward.reward_rollouts import rollout

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]

RUN = "run-of-this-test"


@pytest.fixture
def config(tmp_path, run_name):
    return RunConfig.model_validate(
        {
            "run": {"name": run_name, "steps": 1, "dir": str(tmp_path)},
            "model": {"path": "m"},
            "data": {"train": [{"path": "unused.jsonl"}]},
            "reward": {
                "functions": [
                    {"use": "tests.unit.reward.reward_samples:command", "weight": 2.0},
                    {"use": "tests.unit.reward.reward_samples:waits"},
                ],
                "timeout": 4.0,
            },
            "trainer": {"lr": 1e-3},
        }
    )


def with_reward(config, *, use=None, **changes):
    if use is not None:
        changes["functions"] = (RewardFunction(use=use),)
    return config.model_copy(update={"reward": config.reward.model_copy(update=changes)})


@asynccontextmanager
async def scoring(broker, config):
    context = role_context(config, broker, role="reward", run_id=RUN)
    task = asyncio.create_task(score_rollouts(context))
    try:
        yield context, task
    finally:
        context.stop.set()
        async with asyncio.timeout(20):
            await task


def rollout_message(scored, *, run_id=RUN, type_=None, **changes):
    headers = Headers(
        run_id=run_id,
        purpose=scored.purpose,
        group=scored.group,
        index=scored.index,
        rollout_id=scored.rollout_id,
        attempt=2,
        returns_total=1,
    ).model_copy(update=changes)
    envelope, body = encode(
        scored,
        app_id="rollout/0",
        correlation_id=scored.rollout_id,
        headers=headers.to_amqp(),
        message_id=f"Rollout:{scored.rollout_id}:2:1",
    )
    return Outgoing(exchange="work", routing_key="rollout", envelope=envelope, body=body)


async def take(broker, queue, model):
    async with asyncio.timeout(90):
        while (delivery := await broker.get(queue)) is None:
            await asyncio.sleep(0.02)
    broker.ack(delivery)
    return delivery.envelope, decode(delivery, delivery.body, model)


async def counted(context, name, number):
    """A message may be seen in its queue before its publisher has the confirm."""
    async with asyncio.timeout(60):
        while context.describe()["counters"][name] < number:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("purpose", "queue"), [(Purpose.TRAIN, "trajectories"), (Purpose.EVAL, "evaluations")]
)
async def test_a_rollout_becomes_a_trajectory(connect, config, purpose, queue):
    broker = await connect()
    sent = rollout(3.0, purpose=purpose)
    async with scoring(broker, config):
        await broker.publish(rollout_message(sent))
        envelope, trajectory = await take(broker, queue, Trajectory)
    assert trajectory.reward == 2.0 * 3.0 + 0.25
    assert trajectory.rewards == {"command": 3.0, "waits": 0.25}
    assert trajectory.rollout == sent
    assert envelope.message_id == "Trajectory:3.1:2:1"
    headers = Headers.from_amqp(envelope.headers)
    assert (headers.rollout_id, headers.attempt, headers.returns_total) == ("3.1", 2, 1)
    assert (await broker.depth("rollouts"))[0] == 0


async def test_a_compressed_rollout_is_scored_too(connect, config):
    broker = await connect()
    sent = rollout(1.0, text="".join(map(str, np.random.default_rng(0).integers(0, 9, 90_000))))
    message = rollout_message(sent)
    assert message.envelope.content_encoding == "zstd"
    async with scoring(broker, config):
        await broker.publish(message)
        _, trajectory = await take(broker, "trajectories", Trajectory)
    assert trajectory.rollout == sent


@pytest.mark.parametrize(
    ("ground_truth", "said"),
    [
        ("raise", "RuntimeError: the reward broke"),
        ("nan", "not a finite number"),
        ("hang", "did not return in 2 s and was killed"),
        ("die", "exited with 7"),
    ],
)
async def test_no_score_is_a_failure_never_a_zero(connect, config, ground_truth, said):
    config = with_reward(config, timeout=2.0)
    broker = await connect()
    async with scoring(broker, config):
        await broker.publish(rollout_message(rollout(ground_truth)))
        await broker.publish(rollout_message(rollout(1.0, rollout_id="4.0")))
        envelope, failure = await take(broker, "failures", Failure)
        _, trajectory = await take(broker, "trajectories", Trajectory)
        assert (await broker.depth("trajectories"))[0] == 0
    assert said in failure.error
    assert (failure.rollout_id, failure.group, failure.index) == ("3.1", 3, 1)
    assert (failure.stage, failure.kind) == ("reward", FailureKind.DATA)
    assert (failure.attempt, failure.attempts) == (2, 3)
    assert (failure.returns, failure.data_attempts) == (0, 3)
    assert failure.worker == "reward-1"
    assert failure.original.message_id == "Rollout:3.1:2:1"
    assert ("Traceback" in failure.traceback) == (ground_truth in ("raise", "nan"))
    assert envelope.message_id == "Rollout:3.1:2:1.dead"
    assert trajectory.rollout.rollout_id == "4.0"


async def test_a_score_that_comes_at_the_second_attempt_counts(connect, config, tmp_path):
    config = with_reward(config, use="tests.unit.reward.reward_samples:dies_once")
    broker = await connect()
    async with scoring(broker, config) as (context, _):
        await broker.publish(rollout_message(rollout(str(tmp_path / "marker"))))
        envelope, trajectory = await take(broker, "trajectories", Trajectory)
        await counted(context, "scored", 1)
        assert context.describe()["counters"] == {"scored": 1.0, "failed": 0.0, "retried": 1.0}
        assert (await broker.depth("failures"))[0] == 0
    assert trajectory.reward == 1.0
    assert envelope.message_id == "Trajectory:3.1:2:1"


async def test_a_limit_of_one_scores_once(connect, config):
    rollouts = config.rollout.model_copy(update={"data_attempts": 1})
    broker = await connect()
    async with scoring(broker, config.model_copy(update={"rollout": rollouts})):
        await broker.publish(rollout_message(rollout("raise")))
        _, failure = await take(broker, "failures", Failure)
    assert (failure.attempts, failure.data_attempts) == (1, 1)


async def test_reward_that_kills_every_group(connect, config):
    """Nothing is scored any more: every member of every group ends with its own explanation."""
    broker = await connect()
    sent = [f"{group}.{index}" for group in range(6) for index in range(4)]
    async with scoring(broker, config) as (context, task):
        for name in sent:
            group, index = map(int, name.split("."))
            await broker.publish(
                rollout_message(rollout("raise", rollout_id=name, group=group, index=index))
            )
        failures = [(await take(broker, "failures", Failure))[1] for _ in sent]
        await counted(context, "failed", len(sent))
        assert not task.done(), "the role goes on"
        assert context.describe()["counters"]["failed"] == len(sent)
        assert (await broker.depth("rollouts"))[0] == 0
        assert (await broker.depth("trajectories"))[0] == 0
        assert (await broker.depth("dead_letters"))[0] == len(sent), "for people to look at"
    assert sorted(f"{one.group}.{one.index}" for one in failures) == sorted(sent)
    for one in failures:
        assert "reward_samples:command': RuntimeError: the reward broke" in one.error
        assert "in command" in one.traceback
        assert (one.data_attempts, one.kind, one.original.type) == (3, FailureKind.DATA, "Rollout")


async def test_an_idle_role_says_so_and_stays(connect, config):
    deadlines = config.deadlines.model_copy(update={"stall": 0.5, "warn_after": 0.2})
    broker = await connect()
    config = config.model_copy(update={"deadlines": deadlines})
    waits = Waits(warn_after_s=0.2, on_deadline="stop")
    context = role_context(config, broker, role="reward", waits=waits, run_id=RUN)
    task = asyncio.create_task(score_rollouts(context))
    async with asyncio.timeout(90):
        while waits.current()[0] != "a message in 'rollouts'" or waits.current()[1] < 2.0:
            await asyncio.sleep(0.05)
    await broker.publish(rollout_message(rollout(1.0)))
    await take(broker, "trajectories", Trajectory)
    context.stop.set()
    async with asyncio.timeout(20):
        await task


async def test_foreign_and_contradicting_messages_are_dead_letters(connect, config):
    broker = await connect()
    async with scoring(broker, config):
        await broker.publish(rollout_message(rollout(1.0), run_id="another"))
        _, foreign = await take(broker, "failures", Failure)
        await broker.publish(rollout_message(rollout(1.0), rollout_id="9.9"))
        _, contradicting = await take(broker, "failures", Failure)
        await broker.publish(rollout_message(rollout(1.0)))
        await take(broker, "trajectories", Trajectory)
    assert "belongs to run 'another'" in foreign.error
    assert "headers name '9.9'" in contradicting.error
    assert "the body is '3.1'" in contradicting.error


async def test_told_to_stop_it_finishes_what_it_has_begun(connect, config):
    broker = await connect()
    async with scoring(broker, config) as (context, task):
        for number in range(8):
            await broker.publish(rollout_message(rollout(1.0, rollout_id=f"{number}.0")))
        await take(broker, "trajectories", Trajectory)
        context.stop.set()
        async with asyncio.timeout(20):
            await task
    async with asyncio.timeout(20):  # what was not begun goes back to the queue
        while (await broker.depth("rollouts"))[0] + (await broker.depth("trajectories"))[0] != 7:
            await asyncio.sleep(0.05)
