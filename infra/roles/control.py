"""The control loop: what comes over `sync`, and what to do when nothing comes."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from infra.roles.context import RoleContext
from infra.roles.newest import newest_manifest
from schemas.base import Message
from schemas.control import Command, RunState, WeightsPublished

if TYPE_CHECKING:
    from infra.amqp.message import Delivery

logger = logging.getLogger(__name__)

RUN_STATE_PERIOD_S = 10.0
SILENCE_S = 3 * RUN_STATE_PERIOD_S
_GLANCE_S = 1.0


async def listen(context: RoleContext) -> None:
    """Give every control message to the context, until cancelled.

    When nothing was heard for three periods the subscription is made anew and the weight store
    is read: the broadcast may have been missed.
    """
    loop = asyncio.get_running_loop()
    while True:
        subscription = context.broker.control()
        await subscription.ready()
        context.bound.set()
        heard_at = loop.time()
        messages = aiter(subscription)
        following = asyncio.ensure_future(anext(messages))
        try:
            while loop.time() - heard_at < SILENCE_S:
                done, _ = await asyncio.wait([following], timeout=_GLANCE_S)
                if done:
                    if isinstance(following.exception(), StopAsyncIteration):
                        return
                    hear(context, following.result())
                    heard_at = loop.time()
                    following = asyncio.ensure_future(anext(messages))
        finally:
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
                await following
            await subscription.close()
        await _read_store(context)


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
    """Say so while the trainer has not been heard for three periods."""
    loop = asyncio.get_running_loop()
    started = loop.time()

    def silent_for() -> float:
        return loop.time() - (context.run_state_at or started)

    while True:
        await asyncio.sleep(_GLANCE_S)
        if silent_for() < SILENCE_S or context.known_run_id is None:
            continue
        logger.warning("no word from the trainer for %.0f s", silent_for())
        context.word.clear()
        async with context.waits("word from the trainer"):
            await context.word.wait()
        logger.info("the trainer is heard again")


async def _read_store(context: RoleContext) -> None:
    if context.known_run_id is None:
        return
    manifest = await newest_manifest(context.folder, context.config)
    if manifest is not None and manifest.run_id == context.known_run_id:
        context.hear_weights(manifest)
