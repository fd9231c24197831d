"""Asking an engine, and Hugging Face models as the oracle."""

import asyncio
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from consumers.rollout.engines.base import Engine, Finish, GenerateRequest, TokenChunk
from infra.weights.prepared import PreparedWeights
from infra.weights.store import WeightStore
from tests.factories import models
from tests.factories.loading import prepare, starting

SLOTS = 8
FIRST_PROMPT = (models.BOS, 40)
SIMULATED_PROFILE = {"prefill_s": 0.001, "token_s": 0.004, "tick_s": 0.002, "load_s": 0.005}


@dataclass
class Turn:
    """What came out of one request."""

    token_ids: list[int]
    logprobs: list[float]
    versions: list[int]
    reason: str
    num_cached: int = 0


@dataclass
class Served:
    """An engine, two sets of weights that it can serve, and Hugging Face models of both."""

    name: str
    engine: Engine
    weights: list[PreparedWeights]
    references: list[Any]
    first_turn: Turn

    @property
    def seeded(self) -> bool:
        """Whether seeds have an effect; an SGLang server has to be started for that."""
        return self.name != "sglang_unseeded"

    def refuses(self, **settings: Any) -> bool:
        """Whether the engine understands these settings otherwise than others, and says so."""
        cuts = [settings.get(cut) for cut in ("min_p", "top_k", "top_p") if settings.get(cut)]
        mixed = len([cut for cut in cuts if cut != 1.0]) > 1
        seeded = self.seeded and settings.get("min_p")
        return "sglang" in self.name and bool(mixed or seeded)

    @property
    def caches_prefixes(self) -> bool:
        """Whether a prompt that comes again is not computed again."""
        return self.name not in ("simulated", "sglang_server")  # whose CPU has none with seeds

    async def back_to_start(self) -> None:
        if self.engine.serving().version != 0:
            await self.engine.load_weights(self.weights[0])


def request(name: str, token_ids, **changes) -> GenerateRequest:
    values = {"max_tokens": 16, "temperature": 0.0} | changes
    return GenerateRequest(request_id=name, token_ids=tuple(token_ids), **values)


async def run(engine: Engine, asked: GenerateRequest) -> Turn:
    """Collect a stream, checking its form."""
    turn = Turn([], [], [], "")
    async for item in engine.generate(asked):
        assert not turn.reason, "nothing follows a Finish"
        if isinstance(item, TokenChunk):
            assert len(item.token_ids) == len(item.logprobs) > 0
            turn.token_ids += item.token_ids
            turn.logprobs += item.logprobs
            turn.versions += [item.policy_version] * len(item.token_ids)
        else:
            assert isinstance(item, Finish)
            turn.reason = item.reason
            turn.num_cached = item.num_cached_tokens
    assert turn.reason
    assert len(turn.token_ids) <= asked.max_tokens
    return turn


async def underway(engine: Engine, asked: GenerateRequest) -> "asyncio.Task[Turn]":
    """A task that collects the turn, once its first tokens have come."""
    begun = asyncio.Event()

    class Watched:
        def generate(self, inner):
            return self._watch(inner)

        async def _watch(self, inner):
            async for item in engine.generate(inner):
                begun.set()
                yield item

    task = asyncio.create_task(run(Watched(), asked))
    await asyncio.wait_for(begun.wait(), 20)
    return task


def logits_of(model: Any, token_ids) -> torch.Tensor:
    """One row per position, float32, by one plain forward pass without cache."""
    with torch.inference_mode():
        return model(torch.tensor([list(token_ids)]), use_cache=False).logits[0].float()


def scored(model: Any, prompt, sampled) -> list[float]:
    """Log-probability of each sampled token under the model's own distribution."""
    logits = logits_of(model, [*prompt, *sampled])
    logprobs = logits.log_softmax(-1)[len(prompt) - 1 : -1]
    return logprobs[range(len(sampled)), list(sampled)].tolist()


def greedy(model: Any, prompt, count: int) -> list[int]:
    """Greedy continuation without any cache."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(logits_of(model, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(1000 * length + seed)
    drawn = torch.randint(4, models.VOCAB_SIZE, (length,), generator=generator)
    return tuple(drawn.tolist())


def two_versions(root: Path, newer: Any, dtype: str = "float32") -> list[PreparedWeights]:
    """Those of the model folder `model0`, and a published version 1 of the weights of `newer`."""
    store = WeightStore.at(root / "store")
    published = store.publish(
        newer.state_dict(), version=1, run_id="contract", incarnation=1, step=1, dtype=dtype
    )
    folder = root / "model0"
    shutil.copy(folder / "config.json", root / "store" / published.folder)
    return [starting(folder, dtype), prepare(root / "store", published, folder)]


async def started(
    name: str, folder: Path, weights: PreparedWeights, **options: Any
) -> tuple[Engine, Turn]:
    """An engine that serves them, and the first turn that it sampled."""
    engine = make_engine(name, folder, **options)
    await engine.start(weights)
    asked = GenerateRequest(request_id="first", token_ids=FIRST_PROMPT, max_tokens=3, temperature=0)
    return engine, await run(engine, asked)


def make_engine(
    name: str, folder: Path, *, dtype: str = "float32", slots: int = SLOTS, **options: Any
) -> Engine:
    values = {
        "model_folder": folder,
        "dtype": dtype,
        "slots": slots,
        "max_model_len": models.CONTEXT,
    }
    if name == "vllm":
        from consumers.rollout.engines.vllm.engine import VllmEngine

        return VllmEngine(**values, options={"kv_cache_memory_bytes": 64 << 20, **options})
    if name == "sglang":
        from tests.contract.sglang.fake_engine import fake_server

        return fake_server(**values)
    if name in ("sglang_server", "sglang_unseeded"):
        from tests.contract.sglang.server import cpu_server

        return cpu_server(**values, seeded=name == "sglang_server")
    if name == "simulated":
        from consumers.rollout.engines.simulated.engine import SimulatedEngine

        return SimulatedEngine(
            model_folder=folder,
            slots=slots,
            max_model_len=models.CONTEXT,
            options=dict(SIMULATED_PROFILE),
        )
    from consumers.rollout.engines.transformers.engine import TransformersEngine

    return TransformersEngine(**values, options={"device": "cpu"})
