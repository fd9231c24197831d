"""A memory alarm at the broker while weights are swapped."""

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from infra.amqp.admin import Management
from infra.amqp.local_broker import LocalBroker
from infra.amqp.url import management_url
from tests.broker_fixtures import Connect
from tests.integration.amqp.test_amqp_alarms import set_memory_limit
from tests.integration.rollout.yard import Yard, whole
from tests.unit.rollout.worker_fakes import PROMPT, task

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

LENGTH = 8


async def test_alarm_during_a_swap(
    tmp_path: Path, connect: Connect, killable_node: LocalBroker
) -> None:
    """Nothing can be published: the rollouts cross the swap in the engine, go on under the new
    weights, and come out when the alarm is over."""
    yard = Yard(tmp_path, await connect(app_id="test/yard", url=killable_node.url))
    await yard.publish_weights(0)
    hand = yard.hand(await connect(app_id="rollout/a", url=killable_node.url), "a")
    try:
        hand.engine.hold_at = 3
        for group in range(2):
            await yard.put("prompts", task(group))
        await hand.start()
        await yard.until(lambda: hand.at("0.0", 3) and hand.at("1.0", 3), "two rollouts")
        await asyncio.to_thread(set_memory_limit, killable_node, "1MB")
        management = Management(management_url(killable_node.url))
        while not await asyncio.to_thread(management.alarms):
            await asyncio.sleep(0.1)
        # RabbitMQ tells a connection of an alarm once that publishes
        probing = asyncio.create_task(hand.broker.publish(yard.message("prompts", task(2))))
        await yard.until(lambda: hand.broker.blocked, "the alarm to be heard of")
        published = await yard.publish_weights(1, broadcast=False)
        hand.context.hear_weights(published)
        await yard.until(lambda: hand.served == 1, "the swap")
        assert hand.floor.counters.snapshots_published == 0
        hand.engine.release()
        await yard.until(
            lambda: hand.floor.outbox.unconfirmed()[0] == 2, "both rollouts to wait for the broker"
        )
        assert hand.broker.connected
        await asyncio.to_thread(set_memory_limit, killable_node, "2GB")
        await probing
        await yard.collect(3)
        await hand.stop()
        await yard.nothing_left()
    finally:
        await yard.close()
    assert {yard.tokens(f"{group}.0") for group in range(3)} == {whole(LENGTH)}
    for group in range(2):
        (rollout,) = yard.rollouts[f"{group}.0"]
        versions = rollout.progress.tokens.version_array[len(PROMPT) :].tolist()
        assert versions == [0] * 3 + [1] * (LENGTH - 3)
        assert all(earlier <= later for earlier, later in pairwise(versions))
        assert not rollout.progress.interruptions
