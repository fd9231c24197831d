"""The control loop: what comes over `sync`, and what to do when nothing comes."""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from infra.roles.context import RoleContext
from infra.roles.newest import newest_manifest
from infra.weights.errors import StoreFailed
from schemas.base import Message
from schemas.control import Command, RunState, WeightsPublished

if TYPE_CHECKING:
    from infra.amqp.message import Delivery

logger = logging.getLogger(__name__)

RUN_STATE_PERIOD_S = 10.0
SILENCE_S = 3 * RUN_STATE_PERIOD_S
_CATCH_UP_S = 1.0


async def listen(context: RoleContext) -> None:
    """Give every control message to the context, until cancelled."""
    subscription = context.broker.control()
    try:
        await subscription.ready()
        context.bound.set()
        async for delivery in subscription:
            hear(context, delivery)
    finally:
        await subscription.close()


def hear(context: RoleContext, delivery: "Delivery") -> None:
    """Decode one control message; what cannot be read is logged and ignored."""
    from infra.amqp.codec import decode
    from infra.amqp.errors import BadMessage

    heard: dict[str, tuple[type[Message], Callable[[Any], None]]] = {
        "WeightsPublished": (WeightsPublished, context.hear_weights),
        "RunState": (RunState, context.hear_run_state),
        "Command": (Command, context.hear_command),
    }
    kind = delivery.envelope.type
    if delivery.envelope.replayed:
        logger.warning("ignoring a replayed control message of type %r", kind)
        return
    if kind not in heard:
        logger.warning("ignoring a control message of type %r", kind)
        return
    model, take = heard[kind]
    try:
        message = decode(delivery.envelope, delivery.body, model)
    except BadMessage as error:
        logger.warning("ignoring a control message that cannot be read: %s", error.reason)
        return
    take(message)


async def watch_silence(context: RoleContext) -> None:
    """What to do when the trainer has not been heard for three periods.

    The silence is named until it ends. Every three periods the control connection is made anew
    and the weight store is read: a broadcast may have been missed.

    Raises:
        DeadlinePassed: It lasts longer than `deadlines.stall`, which is to stop the role.
    """
    while True:
        context.word.clear()
        if await _heard(context) or context.known_run_id is None:
            continue
        logger.warning("no word from the trainer for %.0f s", SILENCE_S)
        stall = context.config.deadlines.stall
        async with context.waits("word from the trainer", deadline_s=stall):
            silent = True
            while silent:
                context.broker.rebuild_control()
                await _read_store(context)
                silent = not await _heard(context)
        logger.info("the trainer is heard again")


async def _heard(context: RoleContext) -> bool:
    """Whether a `RunState` comes within three periods."""
    try:
        async with asyncio.timeout(SILENCE_S):
            await context.word.wait()
    except TimeoutError:
        await asyncio.sleep(_CATCH_UP_S)  # our loop may have stood still, the word in its queue
        return context.word.is_set()
    return True


async def _read_store(context: RoleContext) -> None:
    try:
        async with context.waits(
            "the weight store to tell its newest version",
            deadline_s=context.config.deadlines.stall,
        ):
            manifest = await newest_manifest(context.folder, context.config)
    except StoreFailed as error:
        logger.warning("%s", error)
        return
    if manifest is not None and manifest.run_id == context.known_run_id:
        context.hear_weights(manifest)
