"""The fake server in this process, so that tests can turn its switches and look inside."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from aiohttp import web

from consumers.rollout.engines.sglang.client import Answer
from consumers.rollout.engines.sglang.engine import SglangEngine
from tests.contract.sglang.fake.app import App
from tests.contract.sglang.fake.build import build
from tests.contract.sglang.fake.quirks import Quirks
from tests.factories import models
from tests.factories.loading import starting

_WAIT_S = 20.0


class Running:
    """A server that listens."""

    def __init__(self, app: App, url: str, quirks: Quirks) -> None:
        self.app, self.url, self.quirks = app, url, quirks
        self._http = httpx.AsyncClient(base_url=url, timeout=60)
        self._tasks: list[asyncio.Task[Answer]] = []

    @property
    def paths(self) -> list[str]:
        """What was called, in order."""
        return [path for path, _ in self.app.seen]

    async def call(self, method: str, path: str, body: Any = None) -> Answer:
        found = await self._http.request(method, path, json=body)
        return Answer(status=found.status_code, text=found.text)

    async def post(self, path: str, body: Mapping[str, Any]) -> Answer:
        return await self.call("POST", path, body)

    def later(self, path: str, body: Mapping[str, Any]) -> asyncio.Task[Answer]:
        """A call in the background."""
        self._tasks.append(asyncio.create_task(self.post(path, body)))
        return self._tasks[-1]

    async def events(self, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        async with self._http.stream("POST", "/generate", json=body) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    yield json.loads(line[6:])

    async def until(self, true: Callable[[App], Any]) -> None:
        """Wait for a state of the server."""
        async with asyncio.timeout(_WAIT_S):
            while not true(self.app):
                await asyncio.sleep(0.001)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self._http.aclose()


@asynccontextmanager
async def engine_for(
    server: Running, folder: Path, *, version: int = 0, **options: Any
) -> AsyncIterator[SglangEngine]:
    """The engine, started on a server that it is given."""
    engine = SglangEngine(
        model_folder=folder,
        dtype="float32",
        slots=8,
        max_model_len=models.CONTEXT,
        options={"url": server.url, **options},
        log=folder / "unused.log",
    )
    await engine.start(starting(folder, "float32", version=version))
    try:
        yield engine
    finally:
        await engine.close()


@asynccontextmanager
async def running(folder: Path, quirks: Quirks, *arguments: str) -> AsyncIterator[Running]:
    """Serve a model folder; dying means that nobody is answered any more."""
    dead = asyncio.Event()
    given = ["--model-path", str(folder), "--skip-tokenizer-init", *arguments]
    app = build(given, quirks=quirks, die=dead.set)
    runner = web.AppRunner(app.web, keepalive_timeout=quirks.keep_alive_s, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]

    async def bury() -> None:
        await dead.wait()
        await runner.cleanup()

    burial = asyncio.create_task(bury())
    started = Running(app, f"http://127.0.0.1:{port}", quirks)
    try:
        yield started
    finally:
        await started.close()
        burial.cancel()
        await runner.cleanup()
