"""Connections that are cut under running rollouts: one generation, one result, all acknowledged."""

from collections.abc import AsyncIterator

import pytest

from infra.amqp.url import parse_url
from tests.broker_fixtures import Connect
from tests.integration.rollout.yard import Hand, Yard, whole
from tests.proxy import Proxy
from tests.unit.rollout.worker_fakes import task

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]

LENGTH = 8


@pytest.fixture
async def proxy(broker_url: str) -> AsyncIterator[Proxy]:
    async with Proxy(parse_url(broker_url).port or 0) as made:
        yield made


async def sampling(
    yard: Yard, proxy: Proxy, connect: Connect, broker_url: str, *, number: int, **limits: object
) -> Hand:
    """A worker behind the proxy, whose rollouts pause after three tokens."""
    url = broker_url.replace(f":{parse_url(broker_url).port}", f":{proxy.port}")
    broker = await connect(app_id="rollout/cut", url=url, heartbeat_s=5)
    hand = yard.hand(broker, "cut", **limits)
    hand.engine.hold_at = 3
    for group in range(number):
        await yard.put("prompts", task(group))
    await hand.start()
    await yard.until(lambda: all(hand.at(f"{group}.0", 3) for group in range(number)), "sampling")
    return hand


async def test_a_cut_connection_costs_no_second_generation(
    yard: Yard, proxy: Proxy, connect: Connect, broker_url: str
) -> None:
    hand = await sampling(yard, proxy, connect, broker_url, number=3)
    for number in (1, 2):
        proxy.cut()
        await yard.until(
            lambda number=number: hand.floor.counters.readopted >= 3 * number, "adopted again"
        )
    hand.engine.release()
    await yard.collect(3)
    await hand.stop()
    await yard.nothing_left()
    assert [yard.tokens(f"{group}.0") for group in range(3)] == [whole(LENGTH)] * 3
    assert hand.engine.num_sampled == 3 * LENGTH, "each token was sampled once"
    assert len(hand.engine.requests) == 3
    assert not yard.failures


async def test_what_ended_while_the_broker_was_away_is_sent_when_its_message_comes_again(
    yard: Yard, proxy: Proxy, connect: Connect, broker_url: str
) -> None:
    hand = await sampling(yard, proxy, connect, broker_url, number=2)
    proxy.accepting = False
    proxy.cut()
    await yard.until(lambda: not hand.broker.connected, "the cut to be noticed")
    hand.engine.release()
    await yard.until(
        lambda: [one.outcome is not None for one in hand.floor.slots] == [True, True],
        "both rollouts to end with nobody to tell",
    )
    proxy.heal()
    await yard.collect(2)
    await hand.stop()
    await yard.nothing_left()
    assert [yard.tokens(f"{group}.0") for group in range(2)] == [whole(LENGTH)] * 2
    assert hand.engine.num_sampled == 2 * LENGTH


async def test_what_another_worker_took_meanwhile_comes_out_once(
    yard: Yard, proxy: Proxy, connect: Connect, broker_url: str
) -> None:
    hand = await sampling(yard, proxy, connect, broker_url, number=1, readopt_s=0.5)
    proxy.accepting = False
    proxy.cut()
    other = yard.hand(await connect(app_id="rollout/other"), "other")
    await other.start()
    await yard.collect(1)
    proxy.heal()
    await yard.until(lambda: len(hand.floor.slots) == 0, "the orphan to be dropped")
    assert hand.floor.counters.orphans_dropped == 1
    for one in (hand, other):
        await one.stop()
    await yard.nothing_left()
    assert yard.tokens("0.0") == whole(LENGTH)
    assert yard.rollouts["0.0"][0].worker == "other"


async def test_a_snapshot_whose_confirm_was_cut_off_is_continued_once(
    yard: Yard, proxy: Proxy, connect: Connect, broker_url: str
) -> None:
    hand = await sampling(yard, proxy, connect, broker_url, number=1, confirm_patience_s=0.2)
    await yard.publish_weights(1, broadcast=False)
    proxy.black_hole()
    hand.floor.sync.hear_number(1)
    await yard.until(lambda: hand.served == 1, "the swap, with the broker silent")
    assert hand.floor.counters.unconfirmed_cuts == 1
    proxy.heal()
    proxy.cut()
    await yard.until(lambda: hand.floor.counters.readopted >= 1, "adopted again")
    hand.engine.release()
    await yard.collect(1)
    await hand.stop()
    await yard.nothing_left()
    assert {tuple(one.progress.tokens.token_ids) for one in yard.rollouts["0.0"]} == {whole(LENGTH)}
    assert hand.engine.num_sampled == LENGTH
