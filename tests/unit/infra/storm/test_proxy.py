"""The storm's proxy, against an echo server."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator

import pytest

from infra.storm.proxy import Proxy, connection_name

pytestmark = pytest.mark.timeout(30)


def greeting(name: str) -> bytes:
    """What an AMQP client sends first, as far as the proxy reads it."""
    body = name.encode()
    return (
        b"AMQP\x00\x00\x09\x01...\x07productS\x00\x00\x00\x06warren"
        + b"\x0fconnection_nameS"
        + struct.pack(">I", len(body))
        + body
    )


class Client:
    """A connection through the proxy to the echo server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, proxy: Proxy, name: str = "") -> "Client":
        client = cls(*await asyncio.open_connection("127.0.0.1", proxy.port))
        if name:
            assert await client.echo(greeting(name)) == greeting(name)
        return client

    async def echo(self, data: bytes) -> bytes:
        self.writer.write(data)
        return await self.reader.readexactly(len(data))

    async def ended(self) -> type[BaseException] | None:
        """How the connection ended: None for an orderly end."""
        try:
            assert await self.reader.read() == b""
        except OSError as error:
            return type(error)
        return None


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if data == b"goodbye":
                    break
                writer.write(data)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    proxy = Proxy(server.sockets[0].getsockname()[1])
    proxy.start()
    yield proxy
    proxy.stop()
    server.close()


async def test_it_passes_on_what_comes_whole_and_in_order(proxy: Proxy) -> None:
    client = await Client.connect(proxy)
    data = bytes(range(256)) * 40_000
    client.writer.write(data)
    assert await client.reader.readexactly(len(data)) == data


async def test_the_end_of_one_side_ends_the_other(proxy: Proxy) -> None:
    client = await Client.connect(proxy, "r rollout/a publish")
    client.writer.write(b"goodbye")
    assert await client.ended() is None
    assert proxy.names() == []


async def test_a_cut_resets_those_that_it_names(proxy: Proxy) -> None:
    one = await Client.connect(proxy, "r rollout/a publish")
    other = await Client.connect(proxy, "r rollout/b publish")
    assert sorted(proxy.names()) == ["r rollout/a publish", "r rollout/b publish"]
    assert proxy.cut(" rollout/a ") == 1
    assert await one.ended() is ConnectionResetError
    assert await other.echo(b"still there") == b"still there"


async def test_a_black_hole_carries_nothing_until_it_closes(proxy: Proxy) -> None:
    one = await Client.connect(proxy, "r rollout/a publish")
    other = await Client.connect(proxy, "r rollout/b publish")
    with proxy.black_hole(" rollout/a "):
        one.writer.write(b"lost?")
        assert await other.echo(b"through") == b"through"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await one.reader.readexactly(5)
    assert await one.reader.readexactly(5) == b"lost?"
    assert await one.echo(b"again") == b"again"


async def test_a_black_hole_swallows_a_connection_once_it_has_said_its_name(proxy: Proxy) -> None:
    with proxy.black_hole(" rollout/a "):
        client = await Client.connect(proxy)
        client.writer.write(greeting("r rollout/a publish"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await client.reader.read(1)
    whole = greeting("r rollout/a publish")
    assert await client.reader.readexactly(len(whole)) == whole


async def test_a_black_hole_for_all_takes_new_connections_and_carries_nothing(
    proxy: Proxy,
) -> None:
    with proxy.black_hole():
        client = await Client.connect(proxy)
        client.writer.write(b"hello")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await client.reader.read(1)
    assert await client.reader.readexactly(5) == b"hello"


async def test_whoever_gives_up_in_a_black_hole_is_noticed_when_it_closes(proxy: Proxy) -> None:
    client = await Client.connect(proxy, "r rollout/a publish")
    with proxy.black_hole():
        client.writer.transport.abort()
        await asyncio.sleep(0.1)
        assert proxy.names() == ["r rollout/a publish"]
    async with asyncio.timeout(5):
        while proxy.names():
            await asyncio.sleep(0.01)


async def test_a_slow_connection_carries_everything_later(proxy: Proxy) -> None:
    loop = asyncio.get_running_loop()
    one = await Client.connect(proxy, "r rollout/a publish")
    data = bytes(range(250)) * 400
    with proxy.slow(" rollout/a ", bytes_per_s=200_000):
        begun = loop.time()
        for _ in range(3):
            assert await one.echo(data) == data
        assert loop.time() - begun > 0.9  # at least: the third echo waits for two passages


async def test_an_absent_broker_resets(proxy: Proxy) -> None:
    proxy.target_port = 1
    with pytest.raises(ConnectionResetError):
        client = await Client.connect(proxy)
        await client.reader.read(1)


def test_a_name_is_read_only_when_it_is_complete() -> None:
    whole = greeting("r rollout/a publish")
    assert connection_name(whole + b"more") == "r rollout/a publish"
    assert [connection_name(whole[:end]) for end in range(len(whole))] == [None] * len(whole)
