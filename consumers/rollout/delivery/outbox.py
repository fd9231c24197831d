"""Publish, wait for the confirm, and only then acknowledge."""

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum

from consumers.rollout.agents.state import RolloutFailed
from consumers.rollout.counters import Counters
from consumers.rollout.delivery.snapshots import (
    failed_headers,
    outgoing,
    to_try_again,
)
from consumers.rollout.slots import Held, Outcome, Slots
from infra.amqp.connection import Broker
from infra.amqp.dead import give_up
from infra.amqp.errors import MessageTooLarge, PublishTimeout, Unroutable
from infra.amqp.message import Delivery, Outgoing
from infra.amqp.returned import returned
from schemas.headers import Headers
from schemas.work import Failure, FailureKind, Snapshot

logger = logging.getLogger(__name__)

STAGE = "rollout"
_UNROUTABLE_PAUSE_S = 1.0


class Sent(StrEnum):
    """What became of an outcome."""

    CONFIRMED = "confirmed"
    """The broker has it, and its deliveries are acknowledged."""
    NOT_OURS = "not_ours"
    """No delivery is ours, so nothing was published."""
    UNCONFIRMED = "unconfirmed"
    """The broker did not confirm in time; it may have it all the same."""


class Outbox:
    """The way out of this worker.

    Args:
        broker: Connection.
        slots: Whose deliveries are acknowledged.
        counters: Of this worker.
        worker: Its name.
    """

    def __init__(self, *, broker: Broker, slots: Slots, counters: Counters, worker: str) -> None:
        self._broker = broker
        self._slots = slots
        self._counters = counters
        self._worker = worker
        self._app_id = f"{STAGE}/{worker}"
        self._pending: dict[int, float] = {}
        self._next = 0

    @property
    def available(self) -> bool:
        """Whether the broker takes messages at this moment."""
        return self._broker.connected and not self._broker.blocked

    @property
    def connected(self) -> bool:
        """Whether the broker is there."""
        return self._broker.connected

    @property
    def blocked(self) -> bool:
        """Whether an alarm of the broker makes publishers wait."""
        return self._broker.blocked

    def unconfirmed(self) -> tuple[int, float]:
        """Messages that wait for the broker's confirm, and the seconds the first has waited."""
        if not self._pending:
            return 0, 0.0
        now = asyncio.get_running_loop().time()
        return len(self._pending), now - next(iter(self._pending.values()))

    async def deliver(
        self, held: Held, outcome: Outcome, *, timeout_s: float | None = None
    ) -> Sent:
        """Publish what a rollout came to, then acknowledge every delivery of it."""
        live = self._slots.live(held)
        if not live:
            return Sent.NOT_OURS
        try:
            if isinstance(outcome, RolloutFailed):
                await self.refuse(live[0], held.headers, outcome, kind=outcome.kind)
            else:
                await self._publish(outgoing(held, outcome, app_id=self._app_id), timeout_s)
        except PublishTimeout:
            return Sent.UNCONFIRMED
        except MessageTooLarge as error:
            await self.refuse(live[0], held.headers, error, kind=FailureKind.DATA)
        else:
            self._counters.snapshots_published += isinstance(outcome, Snapshot)
        self._acknowledge(held)
        return Sent.CONFIRMED

    async def give_back(self, held: Held, headers: Headers) -> None:
        """Return a message to its queue as it came, with these headers."""
        live = self._slots.live(held)
        if live:
            # of several deliveries, the newest state of the work is what was kept
            source = next((one for one in live if _carries(one, held)), live[0])
            await self._publish(returned(source, headers, app_id=self._app_id), None)
            self._acknowledge(held)
            self._slots.forget_settled(source)  # it keeps its id: when it comes, it is to be run

    async def try_again(self, held: Held, *, anew: bool) -> Sent:
        """Return a rollout that failed by itself, counted.

        Args:
            anew: As its plain task, rather than as it was taken up.
        """
        if not self._slots.live(held):
            return Sent.NOT_OURS
        if anew:
            await self._publish(to_try_again(held, app_id=self._app_id), None)
            self._acknowledge(held)
        else:
            await self.give_back(held, failed_headers(held))
        return Sent.CONFIRMED

    async def refuse(
        self,
        delivery: Delivery,
        headers: Headers | None,
        error: BaseException,
        *,
        kind: FailureKind,
    ) -> None:
        """Give a message up: to `dead` with the reason, confirmed, then acknowledged."""
        self._counters.failures += 1
        logger.warning(
            "giving up %s: %s",
            headers.rollout_id if headers else delivery.envelope.message_id,
            error,
        )
        failure = Failure(
            stage=STAGE,
            kind=kind,
            error=str(error),
            traceback="".join(traceback.format_exception(error)) if error.__traceback__ else "",
            worker=self._worker,
            **_ids(headers, delivery),
            **_attempts(headers, failed=isinstance(error, RolloutFailed | MessageTooLarge)),
        )
        async with self._waiting():
            await give_up(self._broker, delivery, failure)
        self._slots.remember_settled(delivery)

    def drop(self, held: Held) -> None:
        """Acknowledge without a word: nobody needs this rollout any more."""
        for delivery in self._slots.live(held):
            self._broker.ack(delivery)
        self._slots.remove(held)

    def acknowledge(self, delivery: Delivery) -> None:
        """Acknowledge one delivery whose outcome is confirmed."""
        self._broker.ack(delivery)

    def _acknowledge(self, held: Held) -> None:
        for delivery in held.deliveries:
            self._broker.ack(delivery)
            self._slots.remember_settled(delivery)
        self._slots.remove(held)

    async def _publish(self, message: Outgoing, timeout_s: float | None) -> None:
        """Publish, and again while no queue takes it.

        Raises:
            PublishTimeout: Not confirmed within `timeout_s`, however often it was tried.
            MessageTooLarge: For the broker.
        """
        clock = asyncio.get_running_loop().time
        deadline = None if timeout_s is None else clock() + timeout_s
        async with self._waiting():
            while True:
                left_s = None if deadline is None else max(deadline - clock(), 0.0)
                try:
                    await self._broker.publish(message, timeout_s=left_s)
                except Unroutable as error:
                    if deadline is not None and clock() + _UNROUTABLE_PAUSE_S > deadline:
                        raise PublishTimeout(str(error)) from error
                    logger.warning("%s; trying again", error)
                    await asyncio.sleep(_UNROUTABLE_PAUSE_S)
                else:
                    return

    @asynccontextmanager
    async def _waiting(self) -> AsyncIterator[None]:
        key, self._next = self._next, self._next + 1
        self._pending[key] = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            del self._pending[key]


def _carries(delivery: Delivery, held: Held) -> bool:
    return delivery.envelope.type == type(held.work).__name__


def _ids(headers: Headers | None, delivery: Delivery) -> dict[str, object]:
    """What closes a member of a group, as far as the headers can be read."""
    if headers is not None:
        return {
            "rollout_id": headers.rollout_id,
            "group": headers.group,
            "index": headers.index,
            "purpose": headers.purpose,
            "attempt": headers.attempt,
        }
    found = delivery.envelope.headers
    return {
        name: found[name]
        for name, kind in (("rollout_id", str), ("group", int), ("index", int))
        if isinstance(found.get(name), kind)
    }


def _attempts(headers: Headers | None, *, failed: bool) -> dict[str, int]:
    """Both budgets; `failed` says that this was one more attempt."""
    if headers is None:
        return {}
    data_attempts = headers.data_attempts + failed
    return {
        "attempts": headers.returns_total + data_attempts + (not failed),
        "returns": headers.returns_total,
        "data_attempts": data_attempts,
    }
