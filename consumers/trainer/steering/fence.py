"""One trainer at a time: an exclusive queue at the broker, an incarnation in the run folder."""

import asyncio
import contextlib
import logging

from infra.amqp.codec import decode
from infra.amqp.errors import BadMessage, ResourceLocked
from infra.roles.context import RoleContext
from infra.roles.errors import WarrenError
from infra.runs.incarnation import Incarnations
from schemas.control import RunState, Wanted

logger = logging.getLogger(__name__)

QUEUE = "trainer"
PATIENCE_HEARTBEATS = 4
_RETRY_S = 1.0


class AnotherTrainer(WarrenError):
    """Another trainer of this run lives."""


class Fence:
    """This trainer's incarnation number, and the check before each commit."""

    def __init__(self, incarnations: Incarnations) -> None:
        self._incarnations = incarnations
        self.incarnation = incarnations.claim()

    def check(self) -> None:
        """Pass while no newer trainer has begun.

        Raises:
            Superseded: One has.
        """
        self._incarnations.check(self.incarnation)


async def hold_queue(ctx: RoleContext) -> None:
    """Take the exclusive queue. A dead trainer's is free after a few heartbeats.

    Raises:
        AnotherTrainer: It is still held after that, or its holder was heard.
    """
    patience = PATIENCE_HEARTBEATS * ctx.config.broker.heartbeat
    heard = asyncio.ensure_future(_hear_trainer(ctx))
    try:  # nothing of ours is announced yet: any trainer that is heard is another
        async with ctx.waits(f"the fence queue {ctx.config.run.name}.{QUEUE} to become free"):
            async with asyncio.timeout(patience):
                await _retry(ctx, heard)
    except TimeoutError:
        raise _another(ctx, f"still holds its queue after {patience} s") from None
    finally:
        heard.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await heard


async def _retry(ctx: RoleContext, heard: "asyncio.Future[str]") -> None:
    """A dead trainer's last words may come while the broker is about to free its queue: only who
    was heard and holds it a while later lives."""
    known = False
    while True:
        try:
            await ctx.broker.exclusive(QUEUE)
        except ResourceLocked:
            if known:
                raise _another(ctx, f"({heard.result()}) was just heard") from None
            known = heard.done()
            await asyncio.sleep(_RETRY_S)
        else:
            return


async def _hear_trainer(ctx: RoleContext) -> str:
    with contextlib.closing(ctx.broker.control()) as subscription:
        async for delivery in subscription:
            if delivery.envelope.type != RunState.__name__:
                continue
            try:
                state = decode(delivery, delivery.body, RunState)
            except BadMessage:
                continue
            if state.wanted is not Wanted.STOPPED:  # a farewell: it is about to leave
                return delivery.envelope.app_id
    await asyncio.Event().wait()
    return ""


def _another(ctx: RoleContext, how: str) -> AnotherTrainer:
    return AnotherTrainer(
        f"another trainer of run {ctx.config.run.name!r} lives: it {how}",
        hint="stop it first, or give this run another run.name",
    )
