"""The transformers engine: any Hugging Face causal model with full attention, on CPU or CUDA.

It needs nothing but torch and transformers. Its noise is a function of seed and position
(`noise.py`), so a sampled sequence continues after a cut as if it had not been cut.
"""

import logging
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any

import torch

from consumers.rollout.engines.admission import check_request
from consumers.rollout.engines.base import (
    EngineFailed,
    Finish,
    GenerateRequest,
    TokenChunk,
)
from consumers.rollout.engines.transformers.batch import RunningSequence
from consumers.rollout.engines.transformers.generation_loop import GenerationLoop, Stream
from consumers.rollout.engines.transformers.hf_model import HfModel
from infra.roles.errors import ConfigError
from infra.weights.prepared import PreparedWeights, ServedWeights

logger = logging.getLogger(__name__)

OPTIONS = frozenset({"device", "threads", "kv_cache"})


class TransformersEngine:
    """Continuous batching over a Hugging Face model, in a thread of its own.

    Args:
        model_folder: Config and weights, in Hugging Face layout.
        dtype: Of weights and computation: `float32`, `bfloat16`.
        slots: Sequences that run at a time; more are queued.
        max_model_len: Context length in tokens.
        options: `device` (default: `cuda` where there is one), `threads` of torch (default: as
            the process has it), `kv_cache` of running sequences at a swap: `recompute` or `keep`.

    Raises:
        ConfigError: An unknown option or value.
    """

    def __init__(
        self,
        *,
        model_folder: Path,
        dtype: str,
        slots: int,
        max_model_len: int,
        options: dict[str, Any],
    ) -> None:
        if unknown := options.keys() - OPTIONS:
            raise ConfigError(
                f"rollout.engine_options has {', '.join(sorted(unknown))}",
                hint=f"the transformers engine knows {', '.join(sorted(OPTIONS))}",
            )
        self._kv_cache = options.get("kv_cache", "recompute")
        if self._kv_cache not in ("recompute", "keep"):
            raise ConfigError(f"kv_cache is {self._kv_cache!r}, must be 'recompute' or 'keep'")
        self._folder = model_folder
        self._dtype = dtype
        self._slots = slots
        self._max_model_len = max_model_len
        self._threads = int(options.get("threads", 0))
        found = "cuda" if torch.cuda.is_available() else "cpu"
        self._device = str(options.get("device", found))
        self._streams: dict[str, Stream] = {}
        self._loop: GenerationLoop | None = None

    async def start(self, weights: PreparedWeights) -> None:
        """Load the model; see `Engine.start`."""
        if self._loop is not None:
            raise EngineFailed("the engine was started before")
        self._loop = GenerationLoop(
            self._build,
            slots=self._slots,
            max_model_len=self._max_model_len,
            keep_cache=self._kv_cache == "keep",
        )
        await self._loop.start(weights)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk | Finish]:
        """Sample a turn; see `Engine.generate`."""
        loop = self._running()
        check_request(request, vocab_size=loop.model.vocab_size, max_model_len=self._max_model_len)
        if request.request_id in self._streams:
            raise ValueError(f"request {request.request_id} is running already")
        stream = Stream(RunningSequence(request, max_model_len=self._max_model_len))
        self._streams[request.request_id] = stream
        loop.submit(stream)
        over = False
        try:
            while not over:
                item = await stream.items.get()
                over = isinstance(item, Finish | EngineFailed)
                if isinstance(item, EngineFailed):
                    raise item
                yield item
        finally:
            del self._streams[request.request_id]
            if not over:
                loop.drop(stream)

    async def interrupt(self, request_ids: Collection[str] | None = None) -> None:
        """End streams as interrupted; see `Engine.interrupt`."""
        await self._running().interrupt(request_ids)

    async def load_weights(self, weights: PreparedWeights) -> None:
        """Swap weights in place; see `Engine.load_weights`."""
        await self._running().load(weights)

    def serving(self) -> ServedWeights:
        """What the parameters hold; see `Engine.serving`."""
        return self._running().model.served

    async def close(self) -> None:
        """End the thread; see `Engine.close`."""
        if self._loop is not None:
            await self._loop.close()

    def _running(self) -> GenerationLoop:
        if self._loop is None:
            raise EngineFailed("the engine was not started")
        if self._loop.failure is not None:
            raise self._loop.failure
        return self._loop

    def _build(self) -> HfModel:
        if self._threads:
            torch.set_num_threads(self._threads)
        return HfModel(
            self._folder,
            dtype=self._dtype,
            device=self._device,
            max_model_len=self._max_model_len,
        )
