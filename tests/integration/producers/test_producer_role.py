"""The producer on a real broker: credits in, tasks out, nothing lost when it refuses or leaves."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from infra.amqp.codec import decode, encode
from infra.amqp.message import Outgoing
from infra.roles.errors import ConfigError
from infra.runs.dataset_fingerprint import dataset_fingerprint
from producers.prompts import produce
from schemas.config import RunConfig
from schemas.headers import Headers, Purpose
from schemas.work import Credit, Failure, RolloutTask
from tests.factories.contexts import role_context

pytestmark = pytest.mark.broker

RUN = "run-of-this-test"


@pytest.fixture
def config(tmp_path, run_name):
    train, held = tmp_path / "train.jsonl", tmp_path / "eval.jsonl"
    rows = [json.dumps({"prompt": f"p{n}", "answer": str(n)}) for n in range(20)]
    train.write_text("\n".join(rows) + "\n")
    held.write_text("".join(json.dumps({"prompt": f"e{n}"}) + "\n" for n in range(4)))
    return RunConfig.model_validate(
        {
            "run": {"name": run_name, "steps": 1, "dir": str(tmp_path)},
            "model": {"path": "m"},
            "data": {"train": [{"path": str(train)}], "eval": [{"path": str(held)}]},
            "reward": {"functions": [{"use": "exact_match"}]},
            "algorithm": {"group_size": 4},
            "trainer": {"lr": 1e-3},
            "eval": {"prompts": 4},
        }
    )


@asynccontextmanager
async def producing(broker, config, name="producer-1"):
    context = role_context(config, broker, role="producer", worker=name, run_id=RUN)
    task = asyncio.create_task(produce(context))
    try:
        yield context, task
    finally:
        context.stop.set()
        async with asyncio.timeout(20):
            await asyncio.gather(task, return_exceptions=True)


def credit_message(config, *, run_id=RUN, body=None, **changes):
    evaluating = changes.get("purpose") is Purpose.EVAL
    sources = config.data.eval if evaluating else config.data.train
    values = {
        "group": 5,
        "indexes": (0, 1, 2, 3),
        "dataset_fingerprint": dataset_fingerprint(sources),
        "seed": 0,
        "group_size": 1 if evaluating else 4,
    }
    credit = Credit.model_validate(values | changes)
    headers = Headers(
        run_id=run_id,
        group=credit.group,
        purpose=credit.purpose,
        attempt=credit.attempt,
        min_version=credit.min_version,
    )
    envelope, encoded = encode(
        credit,
        app_id="trainer/0",
        correlation_id=str(credit.group),
        headers=headers.to_amqp(),
    )
    return Outgoing(exchange="work", routing_key="credit", envelope=envelope, body=body or encoded)


async def take(broker, queue, model, count):
    """The next messages of a queue, decoded, in order of their ids."""
    found = []
    async with asyncio.timeout(20):
        while len(found) < count:
            delivery = await broker.get(queue)
            if delivery is None:
                await asyncio.sleep(0.02)
                continue
            found.append((delivery.envelope, decode(delivery, delivery.body, model)))
            broker.ack(delivery)
    return sorted(found, key=lambda pair: pair[1].rollout_id)


async def empty(broker, queue):
    async with asyncio.timeout(20):
        while (await broker.depth(queue))[0]:
            await asyncio.sleep(0.05)


async def test_a_credit_becomes_a_group_of_tasks(connect, config):
    broker = await connect()
    async with producing(broker, config):
        await broker.publish(credit_message(config, attempt=1, min_version=2))
        tasks = await take(broker, "prompts", RolloutTask, 4)
    assert [task.rollout_id for _, task in tasks] == ["5.0", "5.1", "5.2", "5.3"]
    assert len({task.row for _, task in tasks}) == 1
    envelope, task = tasks[2]
    assert envelope.message_id == "RolloutTask:5.2:1:0"
    assert envelope.correlation_id == "5.2"
    headers = Headers.from_amqp(envelope.headers)
    assert (headers.run_id, headers.group, headers.index) == (RUN, 5, 2)
    assert (headers.attempt, headers.min_version, headers.purpose) == (1, 2, Purpose.TRAIN)
    assert task.messages[0].content == f"p{task.row}"


async def test_an_evaluation_goes_to_its_own_queue(connect, config):
    broker = await connect()
    async with producing(broker, config):
        await broker.publish(credit_message(config, purpose=Purpose.EVAL, group=7, min_version=7))
        tasks = await take(broker, "eval_prompts", RolloutTask, 4)
    assert [(t.rollout_id, t.messages[0].content) for _, t in tasks] == [
        (f"eval7.{n}", f"e{n}") for n in range(4)
    ]
    assert Headers.from_amqp(tasks[0][0].headers).min_version == 7


async def test_two_producers_share_the_credits_and_make_each_task_once(connect, config):
    one, two = await connect(app_id="producer/1"), await connect(app_id="producer/2")
    async with producing(one, config, "producer-1"), producing(two, config, "producer-2"):
        await asyncio.gather(*(one.publish(credit_message(config, group=g)) for g in range(40)))
        tasks = await take(one, "prompts", RolloutTask, 160)
        await empty(one, "credits")
    assert len({task.rollout_id for _, task in tasks}) == 160
    rows = {task.group: task.row for _, task in tasks}
    assert sorted(rows[g] for g in range(20)) == list(range(20))


async def test_a_bad_row_closes_the_members_and_the_producer_goes_on(connect, config, tmp_path):
    (tmp_path / "train.jsonl").write_text('{"question": "x"}\n')
    broker = await connect()
    async with producing(broker, config):
        await broker.publish(credit_message(config, attempt=3))
        failures = await take(broker, "failures", Failure, 4)
        await broker.publish(credit_message(config, purpose=Purpose.EVAL))
        await take(broker, "eval_prompts", RolloutTask, 4)
    assert [(f.rollout_id, f.group, f.index, f.attempt) for _, f in failures] == [
        (f"5.{n}", 5, n, 3) for n in range(4)
    ]
    assert {(f.stage, f.kind) for _, f in failures} == {("producer", "data")}
    assert "train.jsonl:1: no prompt" in failures[0][1].error
    assert Headers.from_amqp(failures[0][0].headers).rollout_id == "5.0"


@pytest.mark.parametrize(
    "change",
    [{"seed": 1}, {"group_size": 8}, {"dataset_fingerprint": "f" * 64}],
    ids=["seed", "group-size", "dataset"],
)
async def test_a_credit_for_other_data_stays_in_the_queue(connect, config, change):
    broker, observer = await connect(), await connect(app_id="test/1")
    async with producing(broker, config) as (_, task):
        await broker.publish(credit_message(config, **change))
        with pytest.raises(BaseExceptionGroup) as caught:
            async with asyncio.timeout(20):
                await asyncio.shield(task)
    assert caught.group_contains(ConfigError)
    await broker.close()
    async with asyncio.timeout(20):
        while (await observer.depth("credits"))[0] != 1:
            await asyncio.sleep(0.05)
    assert (await observer.depth("prompts"))[0] == 0


async def test_after_good_credits_one_for_other_data_is_given_up(connect, config):
    """The trainer's were like ours: this one came to harm."""
    broker = await connect()
    async with producing(broker, config) as (_, task):
        await broker.publish(credit_message(config, group=1))
        await take(broker, "prompts", RolloutTask, 4)
        await broker.publish(credit_message(config, group=2, seed=77))
        (failure,) = [body for _, body in await take(broker, "failures", Failure, 1)]
        assert "has seed 77" in failure.error
        await broker.publish(credit_message(config, group=3))
        assert len(await take(broker, "prompts", RolloutTask, 4)) == 4
        assert not task.done()


async def test_two_producers_with_different_data(connect, config, tmp_path):
    """The other one refuses and leaves without consuming; every credit becomes its tasks, once."""
    other_file = tmp_path / "other.jsonl"
    other_file.write_text("".join(json.dumps({"prompt": f"other{n}"}) + "\n" for n in range(20)))
    data = config.data.model_copy(
        update={"train": (config.data.train[0].model_copy(update={"path": str(other_file)}),)}
    )
    other_config = config.model_copy(update={"data": data})
    right, wrong = await connect(app_id="producer/1"), await connect(app_id="producer/2")
    observer = await connect(app_id="test/1")
    async with producing(wrong, other_config, "producer-2") as (_, refusing):
        await observer.publish(credit_message(config, group=0))
        with pytest.raises(BaseExceptionGroup) as caught:
            async with asyncio.timeout(20):
                await asyncio.shield(refusing)
    assert caught.group_contains(ConfigError, match="start this producer with the trainer's recipe")
    await wrong.close()
    late = await connect(app_id="producer/3")
    async with (
        producing(right, config, "producer-1"),
        producing(late, other_config, "producer-3") as (_, refusing),
    ):
        await asyncio.gather(
            *(observer.publish(credit_message(config, group=g)) for g in range(1, 41))
        )
        while not refusing.done():
            await observer.publish(credit_message(config, group=40))
            await asyncio.wait([refusing], timeout=0.05)
        await late.close()
        tasks = {}
        async with asyncio.timeout(30):
            while len(tasks) < 41 * 4:
                delivery = await observer.get("prompts")
                if delivery is None:
                    await asyncio.sleep(0.02)
                    continue
                task = decode(delivery, delivery.body, RolloutTask)
                tasks[task.rollout_id] = task.messages[0].content
                observer.ack(delivery)
            await empty(observer, "credits")
    assert set(tasks) == {f"{group}.{index}" for group in range(41) for index in range(4)}
    assert not any(prompt.startswith("other") for prompt in tasks.values())
    assert (await observer.depth("dead_letters"))[0] == 0


async def test_foreign_and_unreadable_messages_are_dead_letters(connect, config):
    broker = await connect()
    async with producing(broker, config):
        await broker.publish(credit_message(config, run_id="another"))
        await broker.publish(credit_message(config, body=b"not json"))
        failures = await take(broker, "failures", Failure, 2)
        await broker.publish(credit_message(config))
        await take(broker, "prompts", RolloutTask, 4)
        await empty(broker, "credits")
    errors = " | ".join(failure.error for _, failure in failures)
    assert "belongs to run 'another'" in errors
    assert "checksum" in errors
    assert {failure.original.queue for _, failure in failures} == {"credits"}


async def test_told_to_stop_it_leaves(connect, config):
    broker = await connect()
    async with producing(broker, config) as (context, task):
        await broker.publish(credit_message(config))
        await take(broker, "prompts", RolloutTask, 4)
        context.stop.set()
        async with asyncio.timeout(20):
            await task
