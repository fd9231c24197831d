"""Ten thousand harmed messages, over every queue, into a run of real roles at a real broker.

    roles start -> two steps -> what they sent is read from the recording -> harmed, published
    all is dead, with its reason, and everybody lives -> the gate opens -> the run completes

A reward that waits for the gate keeps the run from ending before everything has happened. What is
harmed bears the names of groups that the run knows, open ones among them.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pika
import pytest
import pytest_asyncio
import zstandard

from infra.amqp.connection import Broker
from infra.amqp.message import Envelope
from infra.amqp.topology import WORK_KEYS, full_name
from infra.recipes.demo.tokenizer import save_tokenizer
from infra.recipes.demo.warmup import build_model
from schemas.journal import Arrived, Batch
from schemas.work import Failure, Trajectory
from tests.broker_fixtures import Connect
from tests.chaos.hostile_message import NUMBER, Hostile
from tests.chaos.mutations import flip, mutations_for
from tests.chaos.real_messages import real_message
from tests.e2e.plugs import FREE_STEPS
from tests.e2e.runs import Running, RunRecord, eventually, start, write_recipe

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]

STEPS = 5
NUM_ROUNDS = 16
"""Messages of each kind on each queue."""
USED = ("credits", "prompts", "rollouts", "trajectories")
"""Queues that a run uses from its beginning."""
SELDOM = {
    "a bomb": 2,
    "a bomb that hides its size": 2,
    "100,000 empty lists": 2,
    "60 MiB, it says": 2,  # these cost the reader real memory and time
    "an agent that nobody knows": 1,  # two of one member would be one: the second is adopted
}
"""Kinds of which fewer are sent."""
SEALED_CONTROL = ("no JSON", "half", "lost fields", "a later schema", "one field more")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's model with random weights."""
    folder = tmp_path_factory.mktemp("untaught")
    build_model(0).save_pretrained(folder)
    save_tokenizer(folder)
    return folder


@pytest_asyncio.fixture
async def observer(connect: Connect) -> Broker:
    """The test's own connection to the run's broker."""
    return await connect(app_id="observer/0")


async def recorded(broker: Broker) -> dict[str, list[Hostile]]:
    """What the roles have sent until now, by queue: something of each of theirs, and the rest."""
    queues = {key: queue for queue, key in WORK_KEYS.items()}
    types = {"Credit": "credit", "RolloutTask": "prompt", "Snapshot": "cancelled"}
    types |= {"Rollout": "rollout", "Trajectory": "trajectory"}
    found: dict[str, list[Hostile]] = {queue: [] for queue in WORK_KEYS}
    subscription = broker.subscribe("recording", prefetch=256, offset="first")
    with contextlib.suppress(TimeoutError):
        while True:
            enough = all(found[queue] for queue in USED)
            async with asyncio.timeout(3.0 if enough else 60.0):
                delivery = await anext(aiter(subscription))
            queue = queues[types[delivery.envelope.type]]
            found[queue].append(Hostile.of(queue, delivery.envelope, delivery.body))
            broker.ack(delivery)
    subscription.close()
    return found


def harmed(found: dict[str, list[Hostile]], run_id: str) -> Iterator[tuple[str, Hostile]]:
    """`(kind, message)`; of a queue that the run has not used yet, made of models."""
    rng = Random("hostile bytes")
    number = 0
    for queue in (*WORK_KEYS, "failures"):
        sources = found.get(queue) or [
            real_message(queue, run_id=run_id, group=0, index=index) for index in range(4)
        ]
        for kind, mutate in mutations_for(queue).items():
            for _ in range(SELDOM.get(kind, NUM_ROUNDS)):
                source = rng.choice(sources)
                if source.content_encoding is None:
                    yield kind, mutate(source, rng).numbered(number)
                    number += 1


def missing(
    to_work: dict[int, tuple[str, Hostile]], letters: list[tuple[int, Failure]]
) -> Counter[tuple[str, str]]:
    """`(queue, kind)` of what is not dead yet."""
    dead = {number for number, _ in letters}
    return Counter((one.queue, kind) for n, (kind, one) in to_work.items() if n not in dead)


def harmed_control(heard: list[Hostile]) -> Iterator[Hostile]:
    """Broadcasts, under checksums that fit and others. (`queue` is the exchange here.)"""
    rng = Random("control")
    kinds = mutations_for("failures")
    for message in heard:
        for _ in range(40):
            yield replace(message, body=flip(message.body, rng))
            yield kinds[rng.choice(SEALED_CONTROL)](message, rng)
            yield replace(message, type=rng.randbytes(20), body=rng.randbytes(100))


async def broadcasts(broker: Broker) -> list[Hostile]:
    """Control messages and heartbeats, as they are sent every few seconds."""
    heard: dict[str, Hostile] = {}

    async def listen(exchange: str, until: str) -> None:
        deliveries = broker.control() if exchange == "sync" else broker.events()
        with contextlib.closing(deliveries):
            async for delivery in deliveries:
                envelope: Envelope = delivery.envelope
                heard[envelope.type] = Hostile.of(exchange, envelope, delivery.body)
                if envelope.type == until:
                    return

    async with asyncio.timeout(60.0):
        await asyncio.gather(listen("sync", "RunState"), listen("events", "Heartbeat"))
    return list(heard.values())


def publish_all(url: str, run: str, messages: list[Hostile], *, exchange: bool = False) -> None:
    """In bulk; returns when the broker has them all."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    for message in messages:
        name = full_name(run, message.queue)
        where, key = (name, "") if exchange else ("", name)
        channel.basic_publish(where, key, message.body, message.properties())
    channel.basic_qos(prefetch_count=1)  # answered after all that came before
    connection.close()


async def numbers_of_the_dead(broker: Broker) -> list[tuple[int, Failure]]:
    """The harmed ones among the dead letters, taken from the queue."""
    letters = []
    while taken := await broker.take("dead_letters", limit=64):
        for delivery in taken:
            broker.ack(delivery)
            letter = Failure.model_validate_json(_plain(delivery.envelope, delivery.body))
            original = letter.original
            if original is None:
                continue
            name = original.message_id.rpartition("hostile-")[2]
            number = original.headers.get(NUMBER, int(name) if name.isdigit() else None)
            if number is not None:
                letters.append((int(number), letter))
    return letters


def _plain(envelope: Envelope, body: bytes) -> bytes:
    return zstandard.decompress(body) if envelope.content_encoding else body


async def test_ten_thousand_harmed_messages_stop_nobody_and_train_nothing(
    tmp_path: Path, model_folder: Path, broker_url: str, run_name: str, observer: Broker
) -> None:
    path = write_recipe(
        tmp_path,
        run_name,
        model=model_folder,
        steps=STEPS,
        reward="tests.e2e.plugs:gated",
        reward_timeout=900,
    )
    text = path.read_text().replace("[reward]\n", "[reward]\nworkers = 6\n")
    # No connection may be lost: a message that comes again may be given up twice.
    path.write_text(text.replace("heartbeat = 5", "heartbeat = 60"))
    gate, record = tmp_path / "gate", RunRecord(tmp_path / "runs" / run_name)

    def role(command: str, *arguments: str) -> Running:
        return start(tmp_path, command, str(path), *arguments, gate=gate, url=broker_url)

    roles = [role("trainer"), role("producer"), role("reward"), role("rollout", "--name", "one")]
    run_id = await asyncio.to_thread(eventually, record.run_id, "the first version")
    await asyncio.to_thread(eventually, lambda: record.num_steps() >= FREE_STEPS, "two steps")

    heard = await broadcasts(observer)
    assert {message.type for message in heard} >= {b"RunState", b"Heartbeat"}
    found = await recorded(observer)
    assert all(found[queue] for queue in USED)
    sent = list(harmed(found, run_id))
    to_work = {n: (kind, m) for n, (kind, m) in enumerate(sent) if m.queue != "failures"}
    assert len(to_work) >= 10_000
    control = list(harmed_control(heard))
    await asyncio.to_thread(publish_all, broker_url, run_name, [m for _, m in sent])
    await asyncio.to_thread(publish_all, broker_url, run_name, control, exchange=True)

    letters: list[tuple[int, Failure]] = []
    deadline = asyncio.get_running_loop().time() + 500
    while left := missing(to_work, letters):
        assert asyncio.get_running_loop().time() < deadline, left
        letters += await numbers_of_the_dead(observer)
        gone = [one.output()[-3000:] for one in roles if one.process.poll() is not None]
        assert not gone, gone
        await asyncio.sleep(0.5)

    gate.touch()
    for one in roles:
        assert await asyncio.to_thread(one.exit_code) == 0, one.output()[-3000:]
    letters += await numbers_of_the_dead(observer)
    counts = Counter(number for number, _ in letters)
    assert counts == Counter(dict.fromkeys(to_work, 1))
    for number, letter in letters:
        kind, message = to_work[number]
        assert letter.error, kind
        assert letter.original is not None
        assert letter.original.queue == message.queue
    record.check_whole(steps=STEPS)
    check_nothing_trained(record)


def check_nothing_trained(record: RunRecord) -> None:
    """No harmed message was journaled as a trajectory, let alone put into a batch."""
    trajectories: Counter[str] = Counter()
    for one in record.records():
        if isinstance(one, Arrived) and one.type == Trajectory.__name__:
            assert NUMBER not in one.headers
            assert "hostile" not in one.message_id
            trajectories[one.rollout_id] += 1
    members = [m for one in record.records() if isinstance(one, Batch) for m in one.members]
    assert members
    assert set(trajectories.values()) == {1}
