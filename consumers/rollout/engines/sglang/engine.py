"""The SGLang engine: a server in processes of its own, spoken to over HTTP.

generate  -> POST /generate, a stream of events; one id of its own for each
interrupt -> POST /abort_request; the last event brings every token that is not here yet
load      -> gate shut -> pause(retract) -> update from a folder -> prove -> continue -> gate open
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any

from consumers.rollout.engines.admission import check_request
from consumers.rollout.engines.base import EngineFailed, Finish, GenerateRequest, TokenChunk
from consumers.rollout.engines.layout import check_layout
from consumers.rollout.engines.options import TAKEN
from consumers.rollout.engines.sglang.checksums import cpu_digest, gpu_digest
from consumers.rollout.engines.sglang.client import Client, Unreachable
from consumers.rollout.engines.sglang.facts import Facts, probe, read_facts, server_info
from consumers.rollout.engines.sglang.options import read_options
from consumers.rollout.engines.sglang.requests import check_settings
from consumers.rollout.engines.sglang.server import Server
from consumers.rollout.engines.sglang.streams import Streams
from consumers.rollout.engines.sglang.weights import (
    ServerWeights,
    folder_of,
    layout_of_model,
)
from infra.weights.prepared import PreparedWeights, ServedWeights

logger = logging.getLogger(__name__)

_CONTROL_S = 60.0
_CLOSE_S = 1.0
_DIGESTS = {"cpu": cpu_digest, "cuda": gpu_digest}


class SglangEngine:
    """SGLang's continuous batching and radix cache, on whatever its server runs on.

    Fingerprints: what the server holds is measured after every load by its checksums. Those of a
    server on one device are computed here too, and prove every byte; of others they prove that the
    weights changed when they had to, and what was to be loaded was verified (see `proof.py`). The
    engine says at its start which of both holds.

    Args:
        model_folder: Config and weights, in Hugging Face layout.
        dtype: Of weights and computation.
        slots: Sequences that run at a time.
        max_model_len: Context length in tokens.
        options: See `options.Options`.
        log: File for what a server that is started here says.

    Raises:
        ConfigError: An option is unknown or out of range.
    """

    def __init__(
        self,
        *,
        model_folder: Path,
        dtype: str,
        slots: int,
        max_model_len: int,
        options: dict[str, Any],
        log: Path,
    ) -> None:
        self._options = read_options(options)
        self._folder = model_folder
        self._dtype = dtype
        self._slots = slots
        self._max_model_len = max_model_len
        self._log = log
        self._server: Server | None = None
        self._client: Client | None = None
        self._streams: Streams | None = None
        self._failure: EngineFailed | None = None
        self._swap = asyncio.Lock()

    async def start(self, weights: PreparedWeights) -> None:
        """Start or find the server; see `Engine.start`.

        Raises:
            ConfigError: The server has a version, or runs with a flag, that does not do.
        """
        layout = layout_of_model(self._folder, self._dtype)
        check_layout(layout, weights)
        started = False
        try:
            self._client = client = await self._reach(weights)
            facts = read_facts(
                await server_info(client), dtype=self._dtype, max_model_len=self._max_model_len
            )
            self._weights = ServerWeights(
                client,
                layout,
                digest=_DIGESTS.get(facts.device) if facts.tensor_parallel == 1 else None,
                certain=facts.device != "cuda",
                update_timeout_s=self._options.update_timeout,
            )
            self._ready = await asyncio.to_thread(self._weights.look_at, weights)
            if self._server is None:
                await self._weights.change(self._ready, served=None)
            proved = await self._weights.prove(self._ready)
            await probe(client)
            started = True
        except Unreachable as error:
            raise EngineFailed(str(error)) from error
        finally:
            if not started:
                await self.close()
        self._vocab_size = _vocab_size(self._folder)
        self._facts = facts
        self._streams = Streams(
            client,
            facts,
            vocab_size=self._vocab_size,
            max_model_len=self._max_model_len,
            version=lambda: self._ready.version,
            check_alive=self._check_alive,
        )
        self._streams.known.add(weights.version)
        _introduce(facts, self._vocab_size, proved)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk | Finish]:
        """Sample a turn; see `Engine.generate`."""
        streams = self._running()
        check_request(
            request,
            vocab_size=self._vocab_size,
            max_model_len=self._max_model_len,
            options=TAKEN["sglang"],
        )
        check_settings(request, self._facts)
        async with contextlib.aclosing(streams.generate(request)) as items:
            async for item in items:
                yield item

    async def interrupt(self, request_ids: Collection[str] | None = None) -> None:
        """End streams as interrupted; see `Engine.interrupt`."""
        await self._running().interrupt(request_ids)

    async def load_weights(self, weights: PreparedWeights) -> None:
        """Swap weights in place; see `Engine.load_weights`."""
        streams = self._running()
        async with self._swap:
            to = await asyncio.to_thread(self._weights.look_at, weights)
            try:
                async with streams.stopped():
                    streams.known.add(to.version)
                    await self._weights.change(to, served=self._ready)
                    self._ready = to
            except EngineFailed as error:
                self._fail(error)
                raise
            except asyncio.CancelledError:
                self._fail(EngineFailed("an update of SGLang's weights was given up half way"))
                raise

    def serving(self) -> ServedWeights:
        """What the server holds; see `Engine.serving`."""
        self._running()
        return ServedWeights(version=self._ready.version, fingerprint=self._ready.fingerprint)

    @property
    def seeded(self) -> bool:
        """Whether seeds have an effect."""
        self._running()
        return self._facts.deterministic

    async def close(self) -> None:
        """End the server that was started here, or the requests to another one."""
        if self._streams is not None:
            self._streams.close()
        self._failure = self._failure or EngineFailed("the engine is closed")
        client, self._client = self._client, None
        server, self._server = self._server, None
        if server is not None:
            await server.close()
        if client is not None:
            if server is None:
                with contextlib.suppress(Unreachable):
                    everything = {"abort_all": True}
                    await client.control("/abort_request", everything, timeout_s=_CLOSE_S)
            await client.close()

    async def _reach(self, weights: PreparedWeights) -> Client:
        options = self._options
        if options.url:
            client = Client.of(options.url)
            # A worker that was killed may have left it paused, with requests.
            await client.control("/continue_generation", timeout_s=_CONTROL_S)
            await client.control("/abort_request", {"abort_all": True}, timeout_s=_CONTROL_S)
            return client
        self._server = Server.start(
            options,
            folder=folder_of(weights),
            dtype=self._dtype,
            slots=self._slots,
            max_model_len=self._max_model_len,
            version=weights.version,
            log=self._log,
        )
        self._client = Client(self._server.url)
        await self._server.ready(self._client, options.start_timeout)
        return self._client

    def _fail(self, error: EngineFailed) -> None:
        self._failure = self._failure or error
        if self._streams is not None:
            self._streams.wake()

    def _running(self) -> Streams:
        self._check_alive()
        if self._streams is None:
            raise EngineFailed("the engine was not started")
        return self._streams

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._server is not None and not self._server.running:
            raise self._server.failed("SGLang's server has ended")


def _introduce(facts: Facts, vocab_size: int, proved: str) -> None:
    logger.info("SGLang %s on %s: %s", facts.version, facts.device, proved)
    if not facts.deterministic:
        logger.warning(
            "seeds have no effect: this SGLang server runs without --enable-deterministic-inference"
        )
    if facts.mask_limit < vocab_size:
        logger.info(
            "top_p and min_p are taken of the %d most likely tokens "
            "(--sampling-mask-max-tokens less some room)",
            facts.top_k(0, vocab_size),
        )


def _vocab_size(folder: Path) -> int:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return int(config.get("text_config", config)["vocab_size"])
