"""One supervised connection: connects, sets itself up, waits for its end, begins again.

    connect -> set up (channels, topology, consumers) -> up -> lost -> connect ...
                  403, 406, wrong password: fatal, told to everyone who waits

I/O thread only, except for the plain attributes that others may read.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pika
from pika.adapters.asyncio_connection import AsyncioConnection
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from infra.amqp.io.faults import (
    ACCESS_REFUSED,
    PIKA_ERRORS,
    LinkLost,
    describe,
    fatal,
    reply_code,
)
from infra.roles.errors import WarrenError

logger = logging.getLogger(__name__)

_SETUP_TIMEOUT_S = 30.0
_CLOSE_TIMEOUT_S = 2.0
_WARN_AFTER_S = 10.0
_LONGEST_PAUSE_S = 5.0


class _TryAgain(Exception):
    """An attempt failed in a way that time may heal."""


class Link:
    """A connection that comes back.

    Args:
        name: `publish`, `consume` or `control`, for logs.
        parameters: pika's connection parameters.
        address: `host:port`, for errors.
        set_up: Prepares a fresh connection; the link is up when it returns.
        on_down: Told when an up link is lost.
        on_fatal: Told when no retry can help.
        on_unblocked: Told when an alarm of the broker ends.
    """

    def __init__(
        self,
        name: str,
        parameters: Any,
        *,
        address: str,
        set_up: Callable[[Any, int], Awaitable[None]],
        on_down: Callable[[], None],
        on_fatal: Callable[[WarrenError], None],
        on_unblocked: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self.up = False
        self.blocked = False
        self.epoch = 0
        self.failed: WarrenError | None = None
        self.last_error = "not connected yet"
        self.down_since = time.monotonic()
        self.server_properties: dict[str, Any] = {}
        self._parameters = parameters
        self.address = address
        self._set_up = set_up
        self._on_down = on_down
        self._on_fatal = on_fatal
        self._on_unblocked = on_unblocked
        self._connection: Any = None
        self._opening: asyncio.Future[Any] | None = None
        self._lost: asyncio.Future[BaseException | None] | None = None
        self._stopping = False
        self._came_up = asyncio.Event()

    @property
    def connection(self) -> Any:
        """pika's connection, while there is one."""
        return self._connection

    async def run(self) -> None:
        """Keep the link up until `close()` or a fatal error."""
        pause = wait_random_exponential(multiplier=0.2, max=_LONGEST_PAUSE_S)
        while not self._stopping:
            retrying = AsyncRetrying(
                wait=pause, retry=retry_if_exception_type(_TryAgain), before_sleep=self._note
            )
            try:
                await retrying(self._attempt)
            except WarrenError as error:
                self.fail(error)
                self._on_fatal(error)
                return
            assert self._lost is not None
            reason = await asyncio.shield(self._lost)
            self._down(reason)

    async def wait_up(self) -> None:
        """Wait until the link is up.

        Raises:
            WarrenError: It never will be.
        """
        await self._came_up.wait()
        if self.failed is not None:
            raise self.failed

    def fail(self, error: WarrenError) -> None:
        """Never try again, and tell all who wait."""
        self.failed = error
        self.last_error = str(error)
        self._stopping = True
        self._came_up.set()

    def drop(self, reason: str) -> None:
        """Give this connection up and begin again: the one way out of every broken state."""
        if self._connection is None or self._lost is None or self._lost.done():
            return
        logger.warning("%s connection to %s: %s; reconnecting", self.name, self.address, reason)
        self._lost.set_result(LinkLost(reason))
        self._abandon(self._connection)

    def broken(self, reason: BaseException) -> None:
        """The broker closed a channel: begin again, unless it denies us what we do there."""
        if reply_code(reason) != ACCESS_REFUSED:
            self.drop(f"the broker closed a channel: {describe(reason)}")
        elif (denied := fatal(reason, address=self.address)) is not None:
            self.fail(denied)
            self._on_fatal(denied)

    def callback_failed(self, reason: str) -> None:
        """Something raised where nobody awaits it: pika, of a connection that was reset at once,
        tells nobody until its time-out. An attempt under way begins again."""
        if self._opening is not None and not self._opening.done():
            self._opening.set_exception(LinkLost(reason))

    async def close(self) -> None:
        """Close cleanly: what was sent before is processed by the broker."""
        self._stopping = True
        connection = self._connection
        if connection is None or not connection.is_open or self._lost is None:
            return
        connection.close()
        await asyncio.wait([self._lost], timeout=_CLOSE_TIMEOUT_S)

    async def _attempt(self) -> None:
        self._lost = asyncio.get_running_loop().create_future()
        try:
            self._connection = await self._open()
            self.server_properties = dict(self._connection.server_properties or {})
            async with asyncio.timeout(_SETUP_TIMEOUT_S):
                await self._set_up(self._connection, self.epoch + 1)
            if self._lost.done():
                raise LinkLost(describe(self._lost.result()))
        except (*PIKA_ERRORS, LinkLost, WarrenError) as error:
            self._abandon(self._connection)
            self._connection = None
            lost = self._lost.result() if self._lost.done() else None
            reason = lost if isinstance(error, LinkLost) and lost is not None else error
            final = fatal(reason, address=self.address)
            if final is not None:
                raise final from error
            raise _TryAgain(describe(reason)) from error
        self.epoch += 1
        self.up = True
        self._came_up.set()
        if self.epoch > 1:
            logger.info("%s connection to %s is back", self.name, self.address)

    async def _open(self) -> Any:
        opened = self._opening = asyncio.get_running_loop().create_future()

        def succeeded(connection: Any) -> None:
            if not opened.done():
                opened.set_result(connection)

        def failed(_connection: Any, error: BaseException) -> None:
            if not opened.done():
                opened.set_exception(
                    error if isinstance(error, PIKA_ERRORS) else LinkLost(describe(error))
                )

        lost = self._lost  # of this attempt: an older connection may still be closing

        def closed(_connection: Any, error: BaseException) -> None:
            if lost is not None and not lost.done():
                lost.set_result(error)

        connection = AsyncioConnection(
            self._parameters,
            on_open_callback=succeeded,
            on_open_error_callback=failed,
            on_close_callback=closed,
            custom_ioloop=asyncio.get_running_loop(),
        )
        connection.add_on_connection_blocked_callback(lambda _c, _m: self._set_blocked(True))
        connection.add_on_connection_unblocked_callback(lambda _c, _m: self._set_blocked(False))
        return await opened

    def _set_blocked(self, blocked: bool) -> None:
        self.blocked = blocked
        if blocked:
            logger.warning("the broker at %s has an alarm: publishing waits", self.address)
        else:
            logger.info("the broker at %s takes messages again", self.address)
            self._on_unblocked()

    def _down(self, reason: BaseException | None) -> None:
        self.up = self.blocked = False
        self.down_since = time.monotonic()
        self.last_error = describe(reason)
        self._connection = None
        self._came_up.clear()
        if not self._stopping:
            logger.warning("%s connection to %s lost: %s", self.name, self.address, self.last_error)
        self._on_down()

    def _note(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        self.last_error = str(error)
        logger.debug("%s connection to %s: %s", self.name, self.address, self.last_error)

    @staticmethod
    def _abandon(connection: Any) -> None:
        """Close politely; if the other side is silent, cut it off a little later."""
        if connection is None or connection.is_closed:
            return
        loop = asyncio.get_running_loop()
        if connection.is_open:
            connection.close(200, "reconnecting")

        def cut() -> None:
            transport = getattr(connection, "_transport", None)
            if not connection.is_closed and transport is not None:
                transport.abort()

        loop.call_later(_CLOSE_TIMEOUT_S, cut)


async def watch(links: Sequence[Link]) -> None:
    """Nothing waits in silence: name the broker while a link is down for long."""
    warned_at = 0.0
    while True:
        await asyncio.sleep(1.0)
        now = time.monotonic()
        down = [link for link in links if not link.up]
        if not down or now - warned_at < _WARN_AFTER_S:
            continue
        waited = now - min(link.down_since for link in down)
        if waited >= _WARN_AFTER_S:
            warned_at = now
            last = down[0]
            logger.warning(
                "waiting for the broker at %s · %.0f s · %s", last.address, waited, last.last_error
            )


def connection_parameters(url: str, *, name: str, heartbeat_s: int) -> Any:
    """pika's parameters for a checked URL."""
    parameters = pika.URLParameters(url)
    parameters.heartbeat = heartbeat_s
    parameters.connection_attempts = 1
    parameters.socket_timeout = 5.0
    parameters.stack_timeout = 15.0
    parameters.blocked_connection_timeout = None  # an alarm is waited out, visibly
    parameters.client_properties = {"connection_name": name, "product": "warren"}
    return parameters
