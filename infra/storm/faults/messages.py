"""A hostile client takes messages and publishes them again: twice, in another order, damaged.

It acknowledges only after the broker has confirmed, so that it adds nothing that the broker or a
broken network could not do. A damaged message comes beside the whole one or, as the seed says,
instead of it: then it must end as a dead letter, and its member with a reason.

Recovered: the trainer has made another step.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import random
from collections.abc import Callable

from infra.amqp.message import Delivery, Outgoing
from infra.storm.schedule import Planned
from infra.storm.world import RECOVERY_TIMEOUT_S, Outcome, World

_PATIENCE_S = 1.0
_CONFIRM_S = 120.0
_HANDFUL = 6
_LOOK_S = 0.1

Damage = Callable[[bytes, random.Random], bytes]


async def duplicate(world: World, fault: Planned) -> Outcome | None:
    """One message becomes two, alike to the last byte."""
    taken = await _take(world, fault, 1)
    for delivery in taken:
        await _publish(world, delivery)
        await _publish(world, delivery)
        world.hostile.ack(delivery)
    return await _recovered(world, taken)


async def reorder(world: World, fault: Planned) -> Outcome | None:
    """A handful of messages goes back in another order."""
    taken = await _take(world, fault, _HANDFUL)
    shuffled = list(taken)
    random.Random(fault.seed).shuffle(shuffled)
    for delivery in shuffled:
        await _publish(world, delivery)
    for delivery in taken:
        world.hostile.ack(delivery)
    return await _recovered(world, taken)


async def truncate(world: World, fault: Planned) -> Outcome | None:
    """A body ends early."""
    return await _damaged(world, fault, truncated)


async def flip(world: World, fault: Planned) -> Outcome | None:
    """One bit of a body is flipped."""
    return await _damaged(world, fault, flipped)


async def purge(world: World, fault: Planned) -> Outcome | None:
    """Everything that waits in a work queue is deleted; the ledger asks for it again."""
    loop = asyncio.get_running_loop()
    queues = _in_turn(world, fault)
    deadline = loop.time() + RECOVERY_TIMEOUT_S
    while loop.time() < deadline:
        for queue in queues:
            began = loop.time()
            count = await world.hostile.purge(queue)
            if count:
                recovery = await world.recovery_s(("trainer",), began=began)
                return Outcome(
                    survived=recovery is not None, target=queue, detail=f"{count} messages"
                )
        await asyncio.sleep(_LOOK_S)
    return None


def truncated(body: bytes, chance: random.Random) -> bytes:
    """The body without its end."""
    return body[: chance.randrange(len(body))] if body else body


def flipped(body: bytes, chance: random.Random) -> bytes:
    """The body with one other bit."""
    if not body:
        return b"\x01"
    place = chance.randrange(len(body))
    return body[:place] + bytes((body[place] ^ 1 << chance.randrange(8),)) + body[place + 1 :]


async def _damaged(world: World, fault: Planned, damage: Damage) -> Outcome | None:
    chance = random.Random(fault.seed)
    instead = chance.random() < 0.5
    taken = await _take(world, fault, 1)
    for delivery in taken:
        if not instead:
            await _publish(world, delivery)
        await _publish(world, delivery, body=damage(delivery.body, chance))
        world.hostile.ack(delivery)
    return await _recovered(world, taken, "instead" if instead else "beside")


async def _take(world: World, fault: Planned, count: int) -> list[Delivery]:
    """Messages of the planned queue, else of the others in turn: queues are often empty, and all of
    them are while the run recovers from something else."""
    deadline = asyncio.get_running_loop().time() + RECOVERY_TIMEOUT_S
    queues = itertools.cycle(_in_turn(world, fault))
    while asyncio.get_running_loop().time() < deadline:
        queue = next(queues)
        taken: list[Delivery] = []
        subscription = world.hostile.subscribe(queue, prefetch=count)
        with contextlib.closing(subscription), contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                async for delivery in subscription:
                    taken.append(delivery)
                    if len(taken) == count:
                        break
        if taken:
            return taken
    return []


def _in_turn(world: World, fault: Planned) -> list[str]:
    """The planned queue, then the others in an order of the seed."""
    others = [name for name in world.queues if name != fault.target]
    random.Random(fault.seed).shuffle(others)
    return [fault.target, *others]


async def _publish(world: World, delivery: Delivery, body: bytes | None = None) -> None:
    """Straight into the queue that it came from, its envelope as it was."""
    envelope = dataclasses.replace(
        delivery.envelope,
        headers={
            key: value
            for key, value in delivery.envelope.headers.items()
            if not key.startswith("x-")
        },
    )
    outgoing = Outgoing(
        exchange="",
        routing_key=delivery.queue,
        envelope=envelope,
        body=delivery.body if body is None else body,
    )
    await world.hostile.publish(outgoing, timeout_s=_CONFIRM_S)


async def _recovered(world: World, taken: list[Delivery], how: str = "") -> Outcome | None:
    if not taken:
        return None
    began = asyncio.get_running_loop().time()
    recovery = await world.recovery_s(("trainer",), began=began)
    what = f"{len(taken)} {taken[0].envelope.type}"
    return Outcome(
        survived=recovery is not None,
        target=taken[0].queue,
        detail=f"{what}, {how}" if how else what,
    )
