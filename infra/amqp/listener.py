"""Hears a run's broadcasts and heartbeats without taking part in it.

    connect -> is there a `sync` of this run? -> exclusive queue -> bound to sync, events -> listen
                 no: nothing is declared             ^                                      |
                                                     +---------- lost: again in a second ---+

Declares nothing of the topology, publishes nothing, takes no message from a queue of the run.
"""

import os
import secrets
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pika
from pika import exceptions

from infra.amqp.io import strange_headers
from infra.amqp.io.faults import NOT_FOUND, PIKA_ERRORS, LinkLost, describe, fatal, reply_code
from infra.amqp.io.link import connection_parameters
from infra.amqp.io.wire import to_delivery
from infra.amqp.message import Delivery, Lease
from infra.amqp.topology import PRIVATE_QUEUE_ARGUMENTS, QUEUES, ExchangeName, full_name
from infra.amqp.url import address
from infra.roles.errors import WarrenError

_PAUSE_S = 1.0
_GLANCE_S = 0.5
_DEPTHS_S = 2.0
_CONNECT_S = 5.0
_MOST = 10_000
"""Messages kept until they are taken; the oldest go first."""

_STRANGE = (
    *(ValueError, TypeError, LookupError, AttributeError),
    *(ArithmeticError, AssertionError, RecursionError, struct.error),
)
"""What pika raises over a URL's options and over bytes that are no AMQP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hearing:
    """Whether the broker is heard."""

    address: str = ""
    connected: bool = False
    missing: bool = False
    """The broker answers, and has no run of this name."""
    error: str = "not connected yet"
    since: float = 0.0
    """Monotonic: connected, or not, since then."""
    connections: int = 0
    """How often it was connected."""


class Listener:
    """A thread with a connection that comes back.

    Args:
        find_url: Asked again for each connection: a private broker may come back elsewhere.
        run: Name of the run.
        who: Shown in RabbitMQ's own pages, as connection name and consumer tag.
    """

    def __init__(self, find_url: Callable[[], str], *, run: str, who: str = "monitor") -> None:
        self._find_url = find_url
        self._run = run
        self._who = f"{who}/{socket.gethostname().split('.')[0]}-{os.getpid()}"
        self._heard: deque[Delivery] = deque(maxlen=_MOST)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._live, name="listener", daemon=True)
        self._events_bound = False
        self.hearing = Hearing(since=time.monotonic())
        self.depths: dict[str, tuple[int, int]] = {}
        """Queue -> messages ready, consumers; exact, seconds old. Empty where it may not ask."""

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Leave the broker, within a second."""
        self._stop.set()
        self._thread.join(_PAUSE_S)

    def take(self) -> list[Delivery]:
        """What was heard since the last call, in order."""
        taken = []
        with suppress(IndexError):
            while True:
                taken.append(self._heard.popleft())
        return taken

    def _live(self) -> None:
        strange_headers.tolerate()
        while not self._stop.is_set():
            connection = None
            try:
                url = self._find_url()
                self._set(address=address(url))
                parameters = connection_parameters(
                    url, name=f"{self._run} {self._who}", heartbeat_s=20
                )
                parameters.socket_timeout = parameters.stack_timeout = _CONNECT_S
                connection = pika.BlockingConnection(parameters)
                self._listen(connection)
            except (*PIKA_ERRORS, LinkLost, WarrenError) as error:
                refused = fatal(error, address=self.hearing.address)
                self._down(str(refused).partition("\n")[0] if refused else describe(error))
            except _STRANGE as error:
                self._down(describe(error))
            finally:
                if connection is not None and connection.is_open:
                    with suppress(*PIKA_ERRORS, *_STRANGE):  # what is left is read
                        connection.close()
                if sys.exception() is not None:
                    self._down("it cannot be heard any more: start the monitor again")
            self._stop.wait(_PAUSE_S)

    def _listen(self, connection: Any) -> None:
        if not self._exists(connection, ExchangeName.SYNC):
            self._down(f"no run {self._run!r} at this broker", missing=True)
            return
        channel = connection.channel()
        name = full_name(self._run, f"monitor.{secrets.token_hex(4)}")
        channel.queue_declare(name, exclusive=True, arguments=PRIVATE_QUEUE_ARGUMENTS)
        channel.queue_bind(name, full_name(self._run, ExchangeName.SYNC))
        channel.basic_consume(
            name, self._received, auto_ack=True, exclusive=True, consumer_tag=self._who
        )
        self._events_bound = False
        self._set(
            connected=True,
            missing=False,
            error="",
            since=time.monotonic(),
            connections=self.hearing.connections + 1,
        )
        asked_at = 0.0
        while not self._stop.is_set():
            if time.monotonic() - asked_at >= _DEPTHS_S:
                self._bind_events(connection, channel, name)
                self._ask_depths(connection)
                asked_at = time.monotonic()
            connection.process_data_events(time_limit=_GLANCE_S)
            if not channel.is_open:
                raise LinkLost("the broker closed the channel")

    def _bind_events(self, connection: Any, channel: Any, name: str) -> None:
        """`events` is gone after a restart of the broker, until a role makes it again."""
        if not self._exists(connection, ExchangeName.EVENTS):
            self._events_bound = False
        elif not self._events_bound:
            channel.queue_bind(name, full_name(self._run, ExchangeName.EVENTS))
            self._events_bound = True

    def _exists(self, connection: Any, exchange: ExchangeName) -> bool:
        """A question: a passive declaration declares nothing."""
        channel = connection.channel()
        try:
            channel.exchange_declare(full_name(self._run, exchange), passive=True)
        except exceptions.ChannelClosedByBroker as error:
            if reply_code(error) == NOT_FOUND:
                return False
            raise
        channel.close()
        return True

    def _ask_depths(self, connection: Any) -> None:
        depths: dict[str, tuple[int, int]] = {}
        channel = connection.channel()
        for queue in QUEUES:
            try:
                answer = channel.queue_declare(full_name(self._run, queue.name), passive=True)
            except exceptions.ChannelClosedByBroker:  # missing, or not ours to ask for
                channel = connection.channel()
                continue
            depths[queue.name] = (answer.method.message_count, answer.method.consumer_count)
        channel.close()
        self.depths = depths

    def _received(self, _channel: Any, method: Any, properties: Any, body: bytes) -> None:
        lease = Lease(epoch=self.hearing.connections)
        self._heard.append(
            to_delivery("monitor", method, properties, body, lease=lease, needs_ack=False)
        )

    def _set(self, **changes: Any) -> None:
        self.hearing = replace(self.hearing, **changes)

    def _down(self, error: str, *, missing: bool = False) -> None:
        was_up = self.hearing.connected
        self.depths = {}
        since = time.monotonic() if was_up else self.hearing.since
        self._set(connected=False, missing=missing, error=error, since=since)
