"""`replay queue --to-broker`: from the recording of one broker into the queues of another."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from infra.amqp.codec import encode
from infra.amqp.connection import Broker
from infra.amqp.local_broker import LocalBroker
from infra.amqp.message import Envelope, Outgoing
from infra.amqp.topology import WORK_KEYS
from infra.amqp.url import mask_url, without_user
from schemas.headers import REPLAY, Headers, Purpose
from tests.broker_fixtures import Connect
from tests.e2e.runs import finish, write_recipe
from tests.factories.messages import model_for

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]
ALL = f"{len(WORK_KEYS)} of {len(WORK_KEYS)}"
Sent = dict[str, tuple[Envelope, bytes]]


def message(queue: str) -> tuple[Envelope, bytes]:
    """As its sender made it."""
    evaluating = queue in ("eval_prompts", "evaluations")
    purpose = Purpose.EVAL if evaluating else Purpose.TRAIN
    headers = Headers(run_id="r", group=3, index=1, rollout_id="3.1", purpose=purpose)
    return encode(model_for(queue), app_id="a/1", correlation_id="3.1", headers=headers.to_amqp())


@dataclass
class World:
    """A run that recorded a message of each queue at its broker, and another broker."""

    folder: Path
    recipe: str
    url: str
    here: Broker
    there: LocalBroker
    sent: Sent

    def replay(self, *words: str) -> tuple[int, str]:
        """Exit code, and what was said."""
        return finish(self.folder, "replay", "queue", "--run", self.recipe, *words, url=self.url)

    async def check_nothing_lost(self) -> None:
        """At its own broker each message still waits, and nothing else was recorded."""
        for queue in WORK_KEYS:
            assert (await self.here.depth(queue))[0] == 1, queue
        code, said = self.replay("--dry-run")
        assert code == 0 and f"{ALL} messages would be replayed" in said, said


@pytest.fixture
async def world(
    tmp_path: Path, broker_url: str, killable_node: LocalBroker, connect: Connect, run_name: str
) -> World:
    recipe = write_recipe(tmp_path, run_name, model="none")
    here = await connect()
    sent = {queue: message(queue) for queue in WORK_KEYS}
    await here.publish_all([Outgoing.to_queue(queue, *one) for queue, one in sent.items()])
    return World(tmp_path, str(recipe), broker_url, here, killable_node, sent)


async def check_arrived(broker: Broker, queue: str, envelope: Envelope, body: bytes) -> None:
    """This message alone, as a replay."""
    (delivery,) = await broker.take(queue, limit=2)
    headers = dict(delivery.envelope.headers)
    mark = headers.pop(REPLAY)
    assert mark and delivery.envelope.message_id.startswith(f"{mark}:")
    assert headers.items() >= envelope.headers.items()
    assert (delivery.envelope.type, delivery.body) == (envelope.type, body)
    assert broker.ack(delivery)


async def test_each_arrives_marked_in_its_own_queue_of_the_other_broker(
    world: World, connect: Connect
) -> None:
    there = await connect(url=world.there.url)
    code, said = world.replay("--to-queue", "original", "--to-broker", world.there.url)
    assert code == 0, said
    assert f"{ALL} messages sent to their own queues of {there.run} at" in said
    assert mask_url(world.there.url) in said and world.there.url not in said
    for queue, (envelope, body) in world.sent.items():
        await check_arrived(there, queue, envelope, body)
    await world.check_nothing_lost()

    other = await connect(url=world.there.url, run="other")
    dump = str(world.folder / "dump.jsonl")
    code, said = world.replay("--type", "Rollout", "--to-file", dump)
    assert code == 0, said
    needs_no_run = ("--from-file", dump, "--to-queue", "other.rollouts")
    code, said = finish(
        world.folder, "replay", "queue", *needs_no_run, "--to-broker", world.there.url
    )
    assert code == 0 and "1 of 1 messages sent to other.rollouts at" in said, said
    await check_arrived(other, "rollouts", *world.sent["rollouts"])


async def test_what_cannot_be_sent_is_said_and_nothing_is_lost(
    world: World, connect: Connect
) -> None:
    url = world.there.url
    to = ("--to-queue", "original", "--to-broker")
    code, said = world.replay(*to, url)
    assert code == 2 and "no queue takes" in said and "from its first start" in said, said

    stranger = without_user(url).replace("://", "://nobody:geheim@")
    code, said = world.replay(*to, stranger)
    assert code == 3 and "refuses the user or the password" in said, said
    assert "nothing was sent; --to-broker or WARREN_REPLAY_BROKER_URL" in said
    assert "geheim" not in said

    there = await connect(url=url)
    code, said = world.replay("--to-queue", f"{there.run}.rolouts", "--to-broker", url)
    assert code == 2 and f"not all is sent to {there.run}.rolouts at" in said, said
    for queue in WORK_KEYS:
        assert await there.depth(queue) == (0, 0)
    await there.close()

    world.there.kill()
    code, said = world.replay(*to, url)
    assert code == 3 and "no broker answers at" in said and "nothing was sent" in said, said
    await world.check_nothing_lost()
