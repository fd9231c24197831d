"""A TCP proxy on the loopback that can cut, swallow and slow down what passes."""

import asyncio
import contextlib
from typing import Self


class Proxy:
    """Forwards to a port; `async with Proxy(port) as proxy` gives `proxy.port`."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = asyncio.Event()
        self._open.set()
        self.accepting = True
        self.num_accepted = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def port(self) -> int:
        """Where it listens on 127.0.0.1."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    def cut(self) -> None:
        """Reset every open connection."""
        for writer in tuple(self._writers):
            writer.transport.abort()
        self._writers.clear()

    def black_hole(self) -> None:
        """Keep connections open and pass nothing on: a pulled cable."""
        self._open.clear()

    def heal(self) -> None:
        """Pass everything on again, also what was held back."""
        self._open.set()
        self.accepting = True

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_accepted += 1
        if not self.accepting:
            writer.transport.abort()
            return
        try:
            target = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, target[1]}
        for source, sink in ((reader, target[1]), (target[0], writer)):
            task = asyncio.ensure_future(self._pass(source, sink, writer, target[1]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *both: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                await self._open.wait()
                sink.write(data)
                await sink.drain()
        await self._open.wait()  # over a pulled cable nobody hears that the other side is gone
        for writer in both:
            self._writers.discard(writer)
            writer.close()
