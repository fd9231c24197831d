"""What an administrator loads, sees, and may do; and what no policy can take from a run."""

import asyncio
import json
from pathlib import Path
from urllib.parse import urlsplit

import pika
import pytest

from infra.amqp.admin import Management
from infra.amqp.codec import encode
from infra.amqp.connection import Broker
from infra.amqp.definitions.export import administration, definitions
from infra.amqp.definitions.users import MonitoringUser
from infra.amqp.errors import BrokerRefused, ManagementUnreachable, PublishTimeout
from infra.amqp.local_broker import LocalBroker
from infra.amqp.message import Outgoing
from infra.amqp.topology import WORK_QUEUES, full_name
from infra.amqp.url import make_url, management_url
from tests.broker_fixtures import Connect
from tests.factories.messages import model_for
from tests.integration.amqp.messages import outgoing

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]
USER = MonitoringUser("watched-monitoring", "geheim")
RUN = "watched"


def url_of(user: MonitoringUser, url: str) -> str:
    """The broker's URL for somebody else."""
    parts = urlsplit(url)
    assert parts.hostname and parts.port
    return make_url(user=user.name, password=user.password, host=parts.hostname, port=parts.port)


async def test_a_run_starts_on_what_was_imported(
    killable_node: LocalBroker, connect: Connect, tmp_path: Path
) -> None:
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps(definitions(RUN, vhost="/", monitoring=USER)))
    killable_node.control("import_definitions", str(file))
    pages = Management(management_url(killable_node.url))
    names = {queue.name for queue in pages.queues(RUN)}

    broker = await connect(url=killable_node.url, run=RUN, app_id="rollout/one")
    await broker.publish(outgoing("prompt", b"work"))
    taken = await broker.get("prompts")

    assert taken is not None and taken.body == b"work"
    assert {"recording", "dead_letters", "failures", *WORK_QUEUES} <= names
    await the_monitoring_user_looks_and_changes_nothing(killable_node.url)


async def the_monitoring_user_looks_and_changes_nothing(url: str) -> None:
    parts = urlsplit(management_url(url))
    theirs = f"http://{USER.name}:{USER.password}@{parts.hostname}:{parts.port}"
    pages = Management(theirs)
    assert {"prompts", "recording"} <= {queue.name for queue in pages.queues(RUN)}
    async with asyncio.timeout(60):
        while not (connections := await asyncio.to_thread(pages.connections)):
            await asyncio.sleep(0.2)
    for change in (
        lambda: pages.delete_queue(RUN, "prompts"),
        lambda: pages.declare_stream(full_name(RUN, "more")),
        lambda: pages.close_connection(str(connections[0]["name"])),
        lambda: pages.import_definitions({"policies": []}),
    ):
        with pytest.raises(ManagementUnreachable):
            change()
    await asyncio.to_thread(_refused_over_amqp, url_of(USER, url))
    guest = Broker(url_of(USER, url), run=RUN, app_id="replay/r1", guest=True)
    await guest.start()
    with pytest.raises(BrokerRefused, match="denies a permission"):
        await guest.publish(outgoing("prompt", b"work"), timeout_s=60)
    await guest.close()


def _refused_over_amqp(url: str) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    queue, work = full_name(RUN, "prompts"), full_name(RUN, "work")
    for attempt in (
        lambda channel: channel.queue_declare(full_name(RUN, "more")),
        lambda channel: channel.queue_purge(queue),
        lambda channel: channel.basic_get(queue),
        lambda channel: channel.basic_publish(work, "prompt", b"x"),
        lambda channel: channel.basic_publish("", queue, b"x"),
        lambda channel: channel.basic_publish(full_name(RUN, "sync"), "", b"x"),
    ):
        channel = connection.channel()
        channel.confirm_delivery()
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="ACCESS_REFUSED"):
            attempt(channel)
    channel = connection.channel()
    own = full_name(RUN, "monitor.0af3")
    channel.queue_declare(own, exclusive=True)
    for heard in ("sync", "events"):
        channel.queue_bind(own, full_name(RUN, heard))
    connection.close()


@pytest.mark.parametrize(
    "definition",
    [{"max-length": 2, "overflow": "drop-head"}, {"message-ttl": 1}, {"delivery-limit": 0}],
)
async def test_whatever_policy_applies_no_confirmed_message_is_lost(
    definition: dict[str, object], connect: Connect, broker_url: str, run_name: str
) -> None:
    broker = await connect()
    policy = {
        "vhost": "/",
        "name": full_name(run_name, "theirs"),
        "pattern": f"^{run_name}\\.prompts$",
        "apply-to": "queues",
        "definition": definition,
        "priority": 99,
    }
    await asyncio.to_thread(
        Management(management_url(broker_url)).import_definitions, {"policies": [policy]}
    )
    confirmed = 0
    for number in range(6):
        try:
            message = outgoing("prompt", b"%d" % number, message_id=str(number))
            await broker.publish(message, timeout_s=1.0)
            confirmed += 1
        except PublishTimeout:
            break
    assert confirmed >= 2

    async def kept() -> int:
        return sum([(await broker.depth(queue))[0] for queue in ("prompts", "dead_letters")])

    async with asyncio.timeout(60):
        while await kept() < confirmed:
            await asyncio.sleep(0.1)


async def test_policies_of_ours_reach_every_queue(
    connect: Connect, broker_url: str, run_name: str
) -> None:
    await connect()
    pages = Management(management_url(broker_url))
    user = MonitoringUser.of(run_name)
    await asyncio.to_thread(
        pages.import_definitions, administration(run_name, vhost="/", monitoring=user)
    )
    wanted = {"recording": "recording", "dead_letters": "dead", "failures": "dead"} | dict.fromkeys(
        WORK_QUEUES, "work"
    )

    def applied() -> dict[str, str]:
        found = pages.policies_of(run_name)
        return {queue: name.removeprefix(f"{run_name}.") for queue, name in found.items()}

    async with asyncio.timeout(60):
        while await asyncio.to_thread(applied) != wanted:
            await asyncio.sleep(0.2)


async def test_an_admin_reads_in_get_messages_what_it_is_about(
    connect: Connect, broker_url: str, run_name: str
) -> None:
    broker = await connect()
    pages = Management(management_url(broker_url))
    for queue in WORK_QUEUES:
        envelope, body = encode(
            model_for(queue), app_id="rollout/one", correlation_id="3.1", headers={"run_id": "r"}
        )
        await broker.publish(Outgoing.to_queue(queue, envelope, body))
        (seen,) = await asyncio.to_thread(pages.peek, full_name(run_name, queue))
        assert seen["payload_encoding"] == "string"
        assert seen["properties"]["content_type"] == "application/json"
        assert seen["properties"]["app_id"] == "rollout/one"
        assert seen["payload"].encode() == body
        _reads_well(seen["payload"], queue)
        async with asyncio.timeout(30):  # it is put back a little later
            while (await broker.depth(queue))[0] != 1:
                await asyncio.sleep(0.05)


def _reads_well(text: str, queue: str) -> None:
    """Ids, then versions and text, then arrays."""
    if queue == "credits":
        assert text.startswith('{"schema_version":1,"group":')
        return
    assert text.index('"rollout_id"') < text.index('"messages"')
    if '"token_ids"' in text:
        order = ("rollout_id", "turns", "messages", "versions", "token_ids", "logprobs")
        places = [text.rindex(f'"{name}"') for name in order]
        assert places == sorted(places)
        assert text.rstrip("}").endswith('"'), "the arrays come last"


async def test_consumers_and_connections_say_whose_they_are(
    connect: Connect, broker_url: str, run_name: str
) -> None:
    broker = await connect(app_id="reward/reward-1")
    subscription = broker.subscribe("rollouts", prefetch=1)
    await subscription.ready()
    pages = Management(management_url(broker_url))

    def shown() -> tuple[set[str], set[str]]:
        tags = {row["consumer_tag"] for row in pages.consumers(run_name)}
        names = {
            str(row["client_properties"].get("connection_name", "")) for row in pages.connections()
        }
        return tags, {name for name in names if name.startswith(run_name)}

    async with asyncio.timeout(60):
        while True:
            tags, names = await asyncio.to_thread(shown)
            if tags == {"reward/reward-1 rollouts"} and len(names) == 3:
                break
            await asyncio.sleep(0.2)
    assert names == {
        f"{run_name} reward/reward-1 {link}" for link in ("publish", "consume", "control")
    }


async def test_who_leaves_the_recording_early_keeps_the_connection(connect: Connect) -> None:
    broker = await connect()
    await broker.publish_all([outgoing("prompt", b"x" * 4096) for _ in range(400)])
    for _ in range(3):
        subscription = broker.subscribe("recording", prefetch=200, offset="first")
        assert (await anext(subscription)).stream_offset == 0
        subscription.close()
        assert await broker.get("prompts") is not None
    assert broker.reconnects == 0
