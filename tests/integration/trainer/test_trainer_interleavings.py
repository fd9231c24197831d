"""The orders of events that the rules of delivery, ledger and fence exist for, by name."""

import asyncio
import signal
from collections import Counter

import pika
import pytest

from consumers.trainer.steering.fence import QUEUE as FENCE
from infra.amqp.codec import decode, encode
from infra.amqp.errors import ResourceLocked
from infra.amqp.message import Outgoing
from infra.amqp.topology import DELIVERY_LIMIT
from schemas.headers import Headers
from schemas.journal import Arrived, Issued, Late
from schemas.work import Credit, Failure
from tests.factories.relay import Relay
from tests.factories.world import World, trajectory, working
from tests.integration.trainer.books import check_books, records_of
from tests.proxy import Proxy

pytestmark = pytest.mark.broker


@pytest.mark.timeout(300)
async def test_zombie_trainer_after_sigstop(recipe, spawn, connect) -> None:
    """Frozen beyond its heartbeats, replaced, thawed: it writes nothing that counts, and leaves."""
    config = recipe(run={"steps": 8}, broker={"heartbeat": 2})
    async with working(World(await connect(app_id="world/0"), delay_s=0.05)) as world:
        zombie = spawn(config)
        await world.until(lambda: world.version >= 1, 100)
        zombie.send_signal(signal.SIGSTOP)
        heir = spawn(config, resume=True)
        version = world.version
        await world.until(lambda: succeeded(world, version), 100)
        zombie.send_signal(signal.SIGCONT)
        assert await asyncio.to_thread(zombie.wait, 60) == 1
        await world.until(lambda: world.over, 100)
        assert await asyncio.to_thread(heir.wait, 60) == 0
    check_books(config, steps=8)
    versions = Counter((w.version, w.fingerprint) for w in world.published)
    assert len(versions) == 9


def succeeded(world: World, version: int) -> bool:
    """Whether the second trainer has taken over and published; the first may be heard late."""
    newest = world.states[-1]
    return newest.incarnation == 2 and newest.version > version


@pytest.mark.timeout(300)
async def test_resource_locked_by_oneself(recipe, spawn, connect, broker_url) -> None:
    """The broker has not noticed that a trainer is dead: its successor waits for the fence."""
    config = recipe(run={"steps": 5}, broker={"heartbeat": 5})
    url = pika.URLParameters(broker_url)
    async with (
        Proxy(url.port) as proxy,
        working(World(await connect(app_id="world/0"), delay_s=0.02)) as world,
    ):
        through = broker_url.replace(f":{url.port}", f":{proxy.port}")
        first = spawn(config, env={"WARREN_BROKER_URL": through})
        await world.until(lambda: world.version >= 1, 100)
        proxy.black_hole()
        first.kill()
        first.wait()
        with pytest.raises(ResourceLocked):
            await world.broker.exclusive(FENCE)
        second = spawn(config, resume=True)
        await world.until(lambda: world.over, 150)
        assert await asyncio.to_thread(second.wait, 60) == 0
    check_books(config, steps=5)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("point", ["credits.journaled:2", "credits.sent:3", "credits.confirmed:2"])
async def test_crash_between_journal_and_credit(recipe, spawn, connect, point: str) -> None:
    """Every number is issued once, and none is left out, whatever the broker had of them."""
    config = recipe(run={"steps": 3})
    async with working(World(await connect(app_id="world/0"))) as world:
        first = spawn(config, env={"WARREN_FAILPOINT": point})
        assert await asyncio.to_thread(first.wait, 100) == -signal.SIGKILL
        second = spawn(config, resume=True)
        await world.until(lambda: world.over, 100)
        assert await asyncio.to_thread(second.wait, 60) == 0
    end = check_books(config, steps=3)
    issued = [n for r in records_of(config) if isinstance(r, Issued) for n in r.groups]
    assert issued == list(range(int(end["ledger/issued"])))
    assert {credit.group for credit in world.credits} == set(issued)


@pytest.mark.timeout(200)
async def test_broker_dead_letter_closes_its_group(recipe, trainer, connect, broker_url) -> None:
    """A message that nobody can keep: the broker gives it up, its member is dead, the rest goes on.

    With one member of each group left over, the group is too small: dead as well.
    """
    config = recipe(run={"steps": 3}, algorithm={"min_group_size": 4})
    world = Relay(await connect(app_id="world/0"), held={"rollouts"})
    async with working(world):
        running = asyncio.create_task(trainer(config))
        async with asyncio.timeout(60):
            while (await world.broker.depth("rollouts"))[0] < 4:
                await asyncio.sleep(0.02)
        victim = await asyncio.to_thread(return_for_ever, broker_url, f"{config.run.name}.rollouts")
        world.held.clear()
        assert await asyncio.wait_for(running, 100) == 0
    check_books(config, steps=3)
    group = int(victim.partition(".")[0])
    closed = [c for r in records_of(config) for c in getattr(r, "closed", ()) if c.group == group]
    assert [(c.end, c.reason) for c in closed] == [
        ("dead", "the broker gave up a Trajectory after too many deliveries")
    ]


def return_for_ever(url: str, queue: str) -> str:
    """Take a message and give it back until the broker has had enough; its rollout id."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=1)
        victim = ""
        for _ in range(DELIVERY_LIMIT + 1):
            for method, properties, _body in channel.consume(queue, inactivity_timeout=10):
                assert method is not None and properties is not None
                this = properties.headers["rollout_id"]
                victim = victim or this
                assert this == victim
                channel.basic_reject(method.delivery_tag)  # RabbitMQ 4.3 counts no nack
                break
    return victim


async def test_flipped_bit_that_still_decodes(recipe, trainer, connect) -> None:
    """A digit of the reward: good JSON, a good model, and not what was sent. Never trained on."""
    config = recipe(run={"steps": 3}, algorithm={"on_failure": "replace"})
    world = World(await connect(app_id="world/0"), delay_s=0.02)
    world.copies = lambda i: int(i != "0.1" or any(credit.attempt for credit in world.credits))
    async with working(world):
        running = asyncio.create_task(trainer(config))
        await world.until(lambda: world.states != [] and world.credits != [])
        credit = Credit(group=0, indexes=(1,), dataset_fingerprint="0", seed=0, group_size=4)
        headers = Headers(run_id=world.states[0].run_id, group=0, index=1, rollout_id="0.1")
        sent = trajectory(credit, 1, version=0, reward=1.0)
        envelope, body = encode(sent, app_id="w/0", correlation_id="", headers=headers.to_amqp())
        flipped = body.replace(b'"reward":1.0', b'"reward":3.0')
        assert decode(*encode(sent, app_id="", correlation_id="", headers={}), type(sent)) == sent
        assert flipped != body and type(sent).model_validate_json(flipped).reward == 3.0
        await world.broker.publish(
            Outgoing(exchange="work", routing_key="trajectory", envelope=envelope, body=flipped)
        )
        assert await asyncio.wait_for(running, 60) == 0
    end = check_books(config, steps=3)
    assert (end["total/failed"], end["total/replaced"]) == (1, 1)
    arrived = [r for r in records_of(config) if isinstance(r, Arrived) and r.rollout_id == "0.1"]
    assert [(r.type, r.attempt) for r in arrived] == [("Failure", 0), ("Trajectory", 1)]
    dead = await world.broker.get("dead_letters")
    assert dead is not None and "does not match the body" in decode(dead, dead.body, Failure).error
    world.broker.ack(dead)


async def test_late_duplicate_with_other_content(recipe, trainer, connect) -> None:
    """The first one decides, also when the second says something else."""
    config = recipe(run={"steps": 2}, algorithm={"max_staleness": 0})
    calls: Counter[str] = Counter()
    told: set[str] = set()

    def true_reward(rollout_id: str) -> float:
        return float(int(rollout_id.partition(".")[2]) % 2)

    def reward(rollout_id: str) -> float:
        calls[rollout_id] += 1
        return true_reward(rollout_id) if calls[rollout_id] == 1 else 7.0

    world = World(await connect(app_id="world/0"), reward=reward, delay_s=0.01)
    deliver = world.deliver

    async def twice(credit: Credit, index: int, *, run_id: str) -> None:
        await deliver(credit, index, run_id=run_id)
        if index == 2:
            await deliver(credit, index, run_id=run_id)
            told.add(f"{credit.group}.{index}")

    world.deliver = twice  # type: ignore[method-assign]
    async with working(world):
        assert await asyncio.wait_for(trainer(config), 60) == 0
    check_books(config, steps=2)
    records = records_of(config)
    rewards = {r.rollout_id: r.reward for r in records if isinstance(r, Arrived)}
    assert rewards == {rollout_id: true_reward(rollout_id) for rollout_id in rewards}
    assert {r.rollout_id for r in records if isinstance(r, Late)} == told


@pytest.mark.parametrize(
    ("on_deadline", "fails", "said"),
    [
        ("warn", True, "of them dead: reward: ZeroDivisionError"),
        ("stop", True, "of them dead: reward: ZeroDivisionError"),
        ("stop", False, "of them filtered: all rewards equal 0.5"),
    ],
)
async def test_reward_that_kills_every_group(
    recipe, trainer, connect, capfd, on_deadline: str, fails: bool, said: str
) -> None:
    """The dominant reason is named; where all die, nobody has to watch it go on for ever."""
    config = recipe(
        run={"steps": 50},
        algorithm={"max_fruitless": 6},
        deadlines={"on_deadline": on_deadline},
    )
    world = World(await connect(app_id="world/0"), fails=lambda _id: fails, reward=lambda _id: 0.5)
    async with working(world):
        assert await asyncio.wait_for(trainer(config), 60) == 5
    lines = [line for line in capfd.readouterr().out.splitlines() if said in line]
    assert len(lines) == (2 if on_deadline == "warn" else 1), lines
    assert all("groups closed without one to train on" in line for line in lines)
