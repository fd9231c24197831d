"""Memory of a rollout worker over weight updates: at most one more copy of what changes.

A real worker on a real broker; this process plays the trainer. The worker's memory is that of its
processes without shared memory, and what lies in its cache, which is in shared memory.
"""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar

from infra.amqp.connection import Broker
from infra.amqp.local_broker import LocalBroker
from infra.weights.local.cache import SHARED_MEMORY
from tests.benchmarks.memory import MemoryWatch
from tests.factories.models import tokenizer
from tests.integration.rollout.rollout_world import World

LAYERS = 8
_READY_S = 600.0
_SETTLE_S = 3.0


@dataclass(frozen=True, slots=True)
class Update:
    """What one update took, in bytes."""

    what: str
    changed: int
    """Of the tensors that changed."""
    extra: int
    """Peak over what was taken before."""
    stays: int
    """After it, over what was taken before."""

    @property
    def copies(self) -> float:
        """Of the changed tensors."""
        return self.extra / self.changed


def model(folder: Path, seed: int) -> Any:
    """A random Llama of 123 million parameters, 247 MB in bfloat16."""
    disable_progress_bar()
    torch.manual_seed(seed)
    config = LlamaConfig(
        architectures=["LlamaForCausalLM"],
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=LAYERS,
        num_attention_heads=16,
        num_key_value_heads=4,
        vocab_size=16384,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        dtype="bfloat16",
    )
    built = LlamaForCausalLM(config).to(torch.bfloat16)
    built.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return built


@asynccontextmanager
async def world(url: str, run: str, make: Callable[[Path, int], Any]) -> AsyncIterator[World]:
    """A run without trainer, in bfloat16, whose workers keep weights in shared memory."""
    with (
        tempfile.TemporaryDirectory(prefix="warren-bench-") as folder,
        tempfile.TemporaryDirectory(prefix="warren-bench-", dir=SHARED_MEMORY) as cache,
    ):
        broker = Broker(url, run=run, app_id="trainer/bench", heartbeat_s=20)
        await broker.start()
        made = World(Path(folder), broker, url, make=make, dtype="bfloat16")
        made.sections["weights"] = {"cache": cache}
        try:
            yield made
        finally:
            await made.close()
            await broker.close()


async def said(made: World, words: str) -> None:
    """Wait until a worker logs it."""
    async with asyncio.timeout(_READY_S):
        while words not in made.logs():
            for name, process in made.workers.items():
                if process.returncode is not None:
                    raise RuntimeError(f"worker {name} has ended:\n{made.logs()}")
            await asyncio.sleep(0.02)


async def measure(url: str, engine: str) -> list[Update]:
    """Four updates of a worker with this engine: of all tensors, of half of the layers, twice."""
    options: dict[str, Any] = {"threads": 1, "device": "cpu"} if engine == "transformers" else {}
    halves = tuple(f"layers.{index}." for index in range(LAYERS // 2))
    kinds: list[tuple[str, Callable[[str], bool]]] = [
        ("all tensors", lambda _name: True),
        ("half of the layers", lambda name: any(half in name for half in halves)),
    ]
    updates = []
    async with world(url, f"memory-{engine}", model) as made:
        await made.publish_weights(0)
        await made.start("w", engine=engine, engine_options=options)
        await said(made, "serving version 0")
        cache = Path(made.sections["weights"]["cache"])
        with MemoryWatch(made.workers["w"].pid, cache) as watch:
            for version in range(1, 5):
                what, named = kinds[(version - 1) % 2]
                made.nudge(version, named, share=0.01)
                del made.models[version - 1]
                changed = sum(
                    parameter.nbytes
                    for name, parameter in made.models[version].named_parameters()
                    if named(name)
                )
                await asyncio.sleep(_SETTLE_S)
                before = watch.median(time.monotonic() - _SETTLE_S / 2).total
                began = time.monotonic()
                await made.publish_weights(version, keyframe=False)
                await said(made, f"version {version - 1} -> {version}")
                await asyncio.sleep(_SETTLE_S)
                updates.append(
                    Update(
                        what,
                        changed,
                        watch.peak(began).total - before,
                        watch.median(time.monotonic() - _SETTLE_S / 2).total - before,
                    )
                )
        await made.stop("w")
    return updates


def show(engines: tuple[str, ...] = ("transformers", "vllm")) -> None:
    """Print the figures of each engine."""
    print("weights_memory · a worker's memory over an update (aim: one copy of what changes)")
    with tempfile.TemporaryDirectory(prefix="warren-node-") as folder:
        node = LocalBroker(folder)
        node.start(timeout_s=120.0)
        try:
            for engine in engines:
                for update in asyncio.run(measure(node.url, engine)):
                    print(
                        f"  {engine:13s} {update.what:19s} {update.changed / 1e6:7.1f} MB change"
                        f" · peak +{update.extra / 1e6:7.1f} MB = {update.copies:.2f} copies"
                        f" · stays {update.stays / 1e6:+7.1f} MB",
                        flush=True,
                    )
        finally:
            node.kill()
