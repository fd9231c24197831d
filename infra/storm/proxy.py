"""A TCP proxy between the roles and their broker: it cuts, swallows and slows what passes.

    role <-- _End -- _Pair -- _End --> broker        all in a thread of the proxy's own

A black hole reads from neither side: what was sent stays on its way, as behind a pulled cable,
and arrives when the cable is back, unless its sender has given the connection up by then.
"""

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

T = TypeVar("T")

_CALL_TIMEOUT_S = 10.0
_REFUSAL_S = 0.05
"""pika waits 15 s where a connection is reset before it has looked at it; a closed port, which this
stands for, is refused at once."""
_HEAD_BYTES = 16 * 1024
_LINGER_OFF = struct.pack("ii", 1, 0)
_NAME_KEY = b"\x0fconnection_nameS"


@dataclass(eq=False, slots=True, frozen=True)
class _Rule:
    match: str
    bytes_per_s: int | None
    """None: nothing at all."""


class Proxy:
    """Listens on a port of the loopback and forwards to another one.

    Connections are told apart by the name that AMQP clients give them. The methods may be called
    from any thread. A broker that is away makes the proxy reset, as a closed port would.

    Args:
        target_port: Of the broker, on 127.0.0.1.
    """

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="storm-proxy", daemon=True
        )
        self._server: asyncio.Server | None = None
        self._pairs: set[_Pair] = set()
        self._rules: list[_Rule] = []

    def start(self) -> int:
        """Listen; the port."""
        self._thread.start()
        self.port = self._call(self._listen())
        return self.port

    def stop(self) -> None:
        """Reset every connection and listen no more."""
        if self._thread.is_alive():
            self._call(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def names(self) -> list[str]:
        """Of the open connections, as their clients call them; empty where not known (yet)."""
        return self._call(self._names())

    def cut(self, match: str = "") -> int:
        """Reset the connections whose name contains `match`; how many."""
        return self._call(self._cut(match))

    @contextmanager
    def black_hole(self, match: str = "") -> Iterator[None]:
        """While entered, matching connections, new ones too, stay open and carry nothing."""
        with self._ruled(_Rule(match, None)):
            yield

    @contextmanager
    def slow(self, match: str = "", *, bytes_per_s: int) -> Iterator[None]:
        """While entered, each direction of a matching connection carries this much."""
        with self._ruled(_Rule(match, bytes_per_s)):
            yield

    @contextmanager
    def _ruled(self, rule: _Rule) -> Iterator[None]:
        self._call(self._add(rule))
        try:
            yield
        finally:
            self._call(self._lift(rule))

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_TIMEOUT_S)

    # -- the proxy's own thread

    async def _listen(self) -> int:
        self._server = await self._loop.create_server(
            lambda: _Pair(self).client, "127.0.0.1", 0, backlog=512
        )
        return int(self._server.sockets[0].getsockname()[1])

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._cut("")
        tasks = asyncio.all_tasks() - {cast("asyncio.Task[Any]", asyncio.current_task())}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _names(self) -> list[str]:
        return [pair.name for pair in self._pairs]

    async def _cut(self, match: str) -> int:
        pairs = [pair for pair in self._pairs if match in pair.name]
        for pair in pairs:
            pair.reset()
        return len(pairs)

    async def _add(self, rule: _Rule) -> None:
        self._rules.append(rule)
        self._obey()

    async def _lift(self, rule: _Rule) -> None:
        self._rules.remove(rule)
        self._obey()

    def _obey(self) -> None:
        for pair in tuple(self._pairs):
            pair.obey()

    def swallows(self, name: str) -> bool:
        """Whether a connection of this name carries nothing now."""
        return any(rule.bytes_per_s is None and rule.match in name for rule in self._rules)

    def pause_s(self, name: str, num_bytes: int) -> float:
        """How long a connection of this name takes to carry so much more than it does."""
        rates = [rule.bytes_per_s for rule in self._rules if rule.match in name]
        return max((num_bytes / rate for rate in rates if rate), default=0.0)

    def opened(self, pair: "_Pair") -> None:
        """A client has connected."""
        self._pairs.add(pair)
        self._loop.create_task(self._reach(pair))

    def closed(self, pair: "_Pair") -> None:
        """One side is gone."""
        self._pairs.discard(pair)

    async def _reach(self, pair: "_Pair") -> None:
        try:
            await self._loop.create_connection(lambda: pair.target, "127.0.0.1", self.target_port)
        except OSError:
            await asyncio.sleep(_REFUSAL_S)
            pair.reset()


class _Pair:
    """One connection through the proxy."""

    def __init__(self, proxy: Proxy) -> None:
        self.name = ""
        self.proxy = proxy
        self.client = _End(self)
        self.target = _End(self)
        self._head: bytearray | None = bytearray()
        self._over = False

    def connected(self, end: "_End") -> None:
        """Both sides are there once the target's is."""
        if self._over:
            end.reset()
        elif end is self.client:
            end.hold("target")
            self.proxy.opened(self)
        else:
            self.client.release("target")
        self.obey()

    def obey(self) -> None:
        """Do what the rules say now."""
        for end in (self.client, self.target):
            if self.proxy.swallows(self.name):
                end.hold("swallowed")
            else:
                end.release("swallowed")

    def carry(self, end: "_End", data: bytes) -> None:
        """Pass on what one side sent."""
        if end is self.client and self._head is not None:
            self._learn_name(data)
        other = self.target if end is self.client else self.client
        if self.proxy.swallows(self.name):
            end.hold("swallowed")
        if end.held_back:
            end.kept += data
            return
        other.write(data)
        pause = self.proxy.pause_s(self.name, len(data))
        if pause:
            end.hold("slow")
            asyncio.get_running_loop().call_later(pause, end.release, "slow")

    def full(self, end: "_End", full: bool) -> None:
        """One side does not take what the other sends, or does again."""
        other = self.target if end is self.client else self.client
        (other.hold if full else other.release)("full")

    def ended(self, error: BaseException | None) -> None:
        """One side is gone: so is the other, in the same way."""
        self._over = True
        self.proxy.closed(self)
        for end in (self.client, self.target):
            end.reset() if error is not None else end.close()

    def reset(self) -> None:
        """Both sides hear that the connection is no more."""
        self.ended(ConnectionResetError())

    def _learn_name(self, data: bytes) -> None:
        assert self._head is not None
        self._head += data
        name = connection_name(bytes(self._head))
        if name is not None:
            self.name = name
        if name is not None or len(self._head) > _HEAD_BYTES:
            self._head = None  # it also holds the password


class _End(asyncio.Protocol):
    """One side of a connection."""

    def __init__(self, pair: _Pair) -> None:
        self.kept = bytearray()
        """Read already when the black hole opened."""
        self._pair = pair
        self._transport: asyncio.Transport | None = None
        self._holds: set[str] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        sock: socket.socket = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._pair.connected(self)

    def data_received(self, data: bytes) -> None:
        self._pair.carry(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._pair.ended(exc)

    def pause_writing(self) -> None:
        self._pair.full(self, True)

    def resume_writing(self) -> None:
        self._pair.full(self, False)

    @property
    def held_back(self) -> bool:
        """Whether what it sent must not go on yet."""
        return bool(self._holds & {"swallowed", "target"})

    def hold(self, why: str) -> None:
        """Read nothing from this side until released."""
        self._holds.add(why)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def release(self, why: str) -> None:
        """One reason less to hold it."""
        if why not in self._holds:
            return
        self._holds.discard(why)
        if self._holds or self._transport is None or self._transport.is_closing():
            return
        kept, self.kept = bytes(self.kept), bytearray()
        if kept:
            self._pair.carry(self, kept)
        if not self._holds:
            self._transport.resume_reading()

    def write(self, data: bytes) -> None:
        """Send to this side."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """End it once everything is sent."""
        if self._transport is not None:
            self._transport.close()

    def reset(self) -> None:
        """End it at once, with a TCP reset."""
        if self._transport is None:
            return
        sock = self._transport.get_extra_info("socket")
        if sock is not None and sock.fileno() >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_OFF)
        self._transport.abort()


def connection_name(head: bytes) -> str | None:
    """The `connection_name` in the first bytes that an AMQP client sends; None if it is not (yet)
    there. It is a long string in the table of `connection.start-ok`."""
    at = head.find(_NAME_KEY)
    begin = at + len(_NAME_KEY) + 4
    if at < 0 or len(head) < begin:
        return None
    (size,) = struct.unpack(">I", head[begin - 4 : begin])
    if len(head) < begin + size:
        return None
    return head[begin : begin + size].decode("utf-8", errors="replace")
