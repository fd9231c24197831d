"""The interleavings that the rules of delivery and of weight updates exist for, by name."""

import asyncio
import secrets
from itertools import pairwise
from typing import Any

import pytest

from consumers.rollout.agents.base import Agent
from consumers.rollout.agents.state import CutReason
from consumers.rollout.engines.base import EngineFailed
from schemas.work import FailureKind, Snapshot
from tests.broker_fixtures import Connect
from tests.integration.rollout.yard import Hand, Yard, whole
from tests.unit.rollout.worker_fakes import PROMPT, task

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]

HERE = "tests.integration.rollout.test_interleavings"
LENGTH = 8


class Hoarder(Agent):
    """Its state does not fit into a message."""

    def save(self) -> dict[str, Any]:
        return {"hoard": secrets.token_urlsafe(18 << 20)}


async def cut_at(yard: Yard, connect: Connect, group: int, position: int) -> None:
    """A snapshot of a rollout in `cancel_queue`, cut there by another worker."""
    other = yard.hand(await connect(app_id="rollout/first"), f"first-{group}")
    other.engine.hold_at = position
    await yard.put("prompts", task(group))
    await other.start()
    await yard.until(lambda: other.at(f"{group}.0", position), "the first part")
    await other.stop()


async def test_straggler_behind_a_full_prefetch(yard: Yard, connect: Connect) -> None:
    """A worker that is full holds back nothing that another one could do: it has taken no more
    than it runs, and the straggler's snapshot goes before all prompts to whoever is free."""
    busy = yard.hand(await connect(app_id="rollout/busy"), "busy", slots=2)
    busy.engine.hold_at = 3
    for group in range(6):
        await yard.put("prompts", task(group))
    await busy.start()
    await yard.until(lambda: busy.at("0.0", 3) and busy.at("1.0", 3), "two rollouts")
    assert (await yard.broker.depth("prompts"))[0] == 4, "nothing waits behind the two that run"
    straggler = yard.hand(await connect(app_id="rollout/first"), "first", slots=1)
    straggler.engine.hold_at = 5
    await straggler.start()
    await yard.until(lambda: straggler.at("2.0", 5), "the straggler")
    await straggler.stop()
    free = yard.hand(await connect(app_id="rollout/free"), "free", slots=1)
    await free.start()
    await yard.collect(4)
    assert free.engine.requests[0].request_id.startswith("2.0#")
    assert len(free.engine.requests[0].token_ids) == len(PROMPT) + 5
    assert len(busy.engine.requests) == 2, "still busy with the same two"
    busy.engine.release()
    await yard.collect(6)
    for hand in (busy, free):
        await hand.stop()
    await yard.nothing_left()
    assert {yard.tokens(f"{group}.0") for group in range(6)} == {whole(LENGTH)}


async def test_poison_resumed_from_snapshots(yard: Yard, connect: Connect) -> None:
    """Each worker that resumes it gains a token and dies of it; the gain is no excuse."""
    await cut_at(yard, connect, 0, 2)

    lives = 0
    while not yard.failures:
        lives += 1
        assert lives < 12, "it goes on for ever"
        hand = yard.hand(await connect(app_id="rollout/victim"), f"victim-{lives}")
        hand.engine.length = 100
        hand.engine.before_token = lethal_after_one()
        await hand.start()
        while not (hand.ended.done() or yard.failures):
            await yard.take()
            await asyncio.sleep(0.01)
        if hand.ended.done():
            with pytest.raises(EngineFailed, match="the device is lost"):
                hand.ended.result()
        else:
            await hand.stop()
    assert lives == 8, "seven died of it, the eighth refused it"
    await yard.nothing_left()
    (failure,) = yard.failures
    assert failure.kind is FailureKind.INFRA
    assert "came back 7 times without progress" in failure.error
    assert failure.original is not None
    assert failure.original.type == Snapshot.__name__
    assert not yard.rollouts


def lethal_after_one() -> Any:
    """The first token of a life is given, the second one is the end of it."""
    begun: list[int] = []

    async def lethal(rollout_id: str, position: int) -> None:
        begun.append(position)
        if position > begun[0]:
            raise EngineFailed("the device is lost")

    return lethal


async def test_innocents_beside_a_poison(yard: Yard, connect: Connect) -> None:
    """The poison kills its worker, and with it whatever runs beside it, until it runs alone."""
    innocents = [f"{group}.0" for group in range(1, 6)]
    for group in range(6):
        await yard.put("prompts", task(group))
    lives = 0
    while len(yard.rollouts) < len(innocents) or not yard.failures:
        lives += 1
        assert lives < 20, f"only {sorted(yard.rollouts)} and {yard.failures}"
        broker = await connect(app_id=f"rollout/{lives}")
        await one_life(yard, broker, f"life-{lives}", poison="0.0", innocents=len(innocents))
    await yard.nothing_left()
    assert sorted(yard.rollouts) == innocents
    assert {tokens for name in innocents for tokens in [yard.tokens(name)]} == {whole(LENGTH)}
    (failure,) = yard.failures
    assert (failure.rollout_id, failure.kind) == ("0.0", FailureKind.INFRA)
    assert "without progress" in failure.error
    assert (failure.returns, lives) == (7, 8), "innocents died with it three times, then never"


async def one_life(yard: Yard, broker: Any, name: str, *, poison: str, innocents: int) -> None:
    """A worker until the poison kills it, or all is done."""
    hand = yard.hand(broker, name, slots=6)
    dying = asyncio.Event()

    async def lethal(rollout_id: str, position: int) -> None:
        if rollout_id == poison:
            dying.set()
        if dying.is_set():
            await asyncio.Event().wait()  # nobody samples on when the process is dead
        await asyncio.sleep(0.02)

    hand.engine.before_token = lethal
    await hand.start()

    while not dying.is_set() and not (len(yard.rollouts) == innocents and yard.failures):
        await yard.take()
        await asyncio.sleep(0.01)
    await (hand.kill() if dying.is_set() else hand.stop())


async def test_worker_behind_the_version(yard: Yard, connect: Connect) -> None:
    """What needs a later version than the worker serves waits in its slot; others run."""
    hand = yard.hand(await connect(app_id="rollout/behind"), "behind")
    await hand.start()
    await yard.put("prompts", task(0), min_version=2)
    await yard.put("prompts", task(1))
    await yard.collect(1)
    assert list(yard.rollouts) == ["1.0"]
    await yard.until(lambda: "version 2" in hand.context.waits.current()[0], "a named wait")
    await yard.publish_weights(1)
    await yard.until(lambda: hand.served == 1, "version 1")
    assert (await yard.broker.depth("prompts"))[0] == 0, "it keeps it"
    assert len(hand.engine.requests) == 1
    await yard.publish_weights(2)
    await yard.collect(2)
    await hand.stop()
    await yard.nothing_left()
    (late,) = yard.rollouts["0.0"]
    sampled = late.progress.tokens.version_array[len(PROMPT) :]
    assert set(sampled.tolist()) == {2}


async def test_endless_interruption_of_a_long_rollout(yard: Yard, connect: Connect) -> None:
    """New weights come faster than tokens; the rollout ends all the same."""
    length = 30
    hands = [
        yard.hand(await connect(app_id=f"rollout/{name}"), name, slots=2, max_swap_delay_s=0.0)
        for name in ("a", "b")
    ]
    for hand in hands:
        await hand.start()
        hand.engine.length = length
        hand.engine.hold_at = 3  # however slow the disk is, no version sees all of it
        hand.engine.before_token = slowly
    await yard.put("prompts", task(0))
    await yard.until(lambda: any(hand.at("0.0", 3) for hand in hands), "a beginning")
    version = 0
    while not yard.rollouts:
        version += 1
        assert version < 300, "it goes on for ever"
        await yard.publish_weights(version)
        await yard.until(lambda v=version: all(one.served == v for one in hands), "the swap")
        for hand in hands:
            hand.engine.release(3 + 3 * version)
        await yard.take()
    for hand in hands:
        await hand.stop()
    await yard.nothing_left()
    (rollout,) = yard.rollouts["0.0"]
    assert yard.tokens("0.0") == whole(length)
    versions = rollout.progress.tokens.version_array[len(PROMPT) :].tolist()
    assert all(earlier <= later for earlier, later in pairwise(versions))
    assert versions[-1] > versions[0]
    cuts = [one.at_token for one in rollout.progress.interruptions]
    assert cuts, "it was interrupted"
    assert max(cuts.count(place) for place in cuts) <= hands[0].limits.max_fruitless_cuts


async def slowly(rollout_id: str, position: int) -> None:
    await asyncio.sleep(0.05)


async def test_oversized_message(yard: Yard, connect: Connect) -> None:
    """A snapshot that no broker takes is a data failure, at once; the others go on."""
    hand = yard.hand(await connect(app_id="rollout/big"), "big")
    hand.engine.hold_at = 3
    await yard.put("prompts", task(0).model_copy(update={"agent": f"{HERE}:Hoarder"}))
    await yard.put("prompts", task(1))
    await hand.start()
    await yard.until(lambda: hand.at("0.0", 3) and hand.at("1.0", 3), "two rollouts")
    await hand.floor.runner.cut(hand.floor.slots, CutReason.INTERVAL)
    hand.engine.release()
    await yard.collect(1, failures=1)
    await hand.stop()
    await yard.nothing_left()
    (failure,) = yard.failures
    assert (failure.rollout_id, failure.kind) == ("0.0", FailureKind.DATA)
    assert "MiB exceeds the limit of 16.0 MiB" in failure.error
    assert (failure.data_attempts, failure.returns) == (1, 0)
    assert yard.tokens("1.0") == whole(LENGTH)


async def test_a_kill_repeats_at_most_what_the_interval_left_unsaved(
    yard: Yard, connect: Connect
) -> None:
    """A long rollout goes from worker to worker at each interval; a kill costs what came since."""
    length = 60

    def worker(name: str, broker: Any) -> Hand:
        hand = yard.hand(broker, name, slots=1, snapshot_interval_s=0.4)
        hand.engine.length = length
        hand.engine.before_token = slowly
        return hand

    first = worker("first", await connect(app_id="rollout/first"))
    await yard.put("prompts", task(0))
    await first.start()
    await yard.until(lambda: first.floor.counters.snapshots_published >= 3, "three intervals")
    await yard.until(lambda: first.floor.describe()["tokens_unsaved"] > 0, "a token since")
    unsaved = first.floor.describe()["tokens_unsaved"]
    sampled = first.engine.num_sampled
    await first.kill()
    second = worker("second", await connect(app_id="rollout/second"))
    await second.start()
    await yard.collect(1)
    await second.stop()
    await yard.nothing_left()
    assert yard.tokens("0.0") == whole(length)
    repeated = sampled + second.engine.num_sampled - length
    assert repeated == unsaved, "the heartbeat said what a kill would cost"
    (rollout,) = yard.rollouts["0.0"]
    cuts = rollout.progress.interruptions
    assert {cut.reason for cut in cuts} == {"interval"}
    places = [len(PROMPT), *(cut.at_token for cut in cuts), len(PROMPT) + length]
    assert repeated <= max(later - earlier for earlier, later in pairwise(places))
    assert repeated < length / 3
