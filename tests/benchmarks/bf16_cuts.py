"""How often a cut changes a token in bfloat16, where rounding decides between near tokens.

A resumed rollout is prefilled where the uncut one was decoded token by token, so its sums are
rounded elsewhere. The same conversations uncut, in other company, are the floor: what batches
change anyway. In float32 nothing changes.
"""

import asyncio
import os
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging as transformers_logging

from tests.contract.harness import make_engine
from tests.factories import models
from tests.factories.cuts.conversations import task
from tests.factories.cuts.cutting import Cut, Played, Worker, play_all
from tests.factories.cuts.plan import random_cuts
from tests.factories.loading import starting

SIZES = {"demo-size": (128, 384, 2, 4), "larger": (512, 1536, 6, 8)}
"""Width, width inside, layers, heads."""
_AT_ONCE = 64


@dataclass(frozen=True)
class Change:
    """What two courses of the same conversations have in common."""

    num_pairs: int
    num_changed: int
    num_tokens: int
    """Sampled, behind the first cut or in all."""
    gaps: list[float]
    """Nats between the two tokens where they first differ; of no meaning where noise decides."""

    def __str__(self) -> str:
        share = self.num_changed / max(1, self.num_pairs)
        shown = f"{self.num_changed:4d} of {self.num_pairs:4d} = {share:5.1%}"
        shown += f", 1 in {self.num_tokens / max(1, self.num_changed):,.0f} tokens"
        if self.gaps:
            half, most = np.percentile(self.gaps, [50, 100])
            shown += f" (nats apart: median {half:.3f}, most {most:.3f})"
        return shown


def build(folder: Path, size: str, dtype: str) -> int:
    """A random model with tests' tokenizer; its number of parameters."""
    width, inside, layers, heads = SIZES[size]
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=inside,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        vocab_size=models.VOCAB_SIZE,
        max_position_embeddings=models.CONTEXT,
        tie_word_embeddings=False,
        bos_token_id=models.BOS,
        eos_token_id=models.EOS,
        pad_token_id=models.PAD,
        architectures=["LlamaForCausalLM"],
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.normal_(0.0, 1.1 / parameter.shape[-1] ** 0.5)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    models.tokenizer().save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def compared(first: Sequence[Played], second: Sequence[Played], *, greedy: bool) -> Change:
    """Token for token, in pairs of which the second was cut or kept other company."""
    gaps, num_tokens = [], 0
    for one, other in zip(first, second, strict=True):
        cut_at = [cut.at_token for cut in other.rollout.progress.interruptions]
        sampled = one.rollout.progress.tokens.mask_array
        num_tokens += int(sampled[min(cut_at, default=0) :].sum())
        tokens, others = one.rollout.progress.tokens, other.rollout.progress.tokens
        ids, other_ids = tokens.token_ids.tolist(), others.token_ids.tolist()
        if ids == other_ids:
            continue
        place = next(n for n in range(len(ids)) if ids[n] != other_ids[n])
        gaps.append(abs(float(tokens.logprobs[place] - others.logprobs[place])))
    return Change(len(first), len(gaps), num_tokens, gaps if greedy else [])


async def measure(engine: str, folder: Path, dtype: str, number: int, *, sampled: bool) -> None:
    """Print one row."""
    built = make_engine(engine, folder, dtype=dtype, slots=_AT_ONCE)
    await built.start(starting(folder, dtype))
    try:
        workers = [Worker("one", built, folder)]
        tasks = [task(n, sampled=sampled) for n in range(number)]
        uncut: list[Sequence[Cut]] = [()] * number
        whole = await play_all(tasks, workers, uncut, at_once=_AT_ONCE)
        backwards = await play_all(tasks[::-1], workers, uncut, at_once=_AT_ONCE // 3)
        cuts = [_inner_cut(one, n) for n, one in enumerate(whole)]
        cut = await play_all(tasks, workers, cuts, at_once=_AT_ONCE)
    finally:
        await built.close()
    pairs = [(one, other) for one, other in zip(whole, cut, strict=True) if other.handed]
    left, right = [one for one, _ in pairs], [other for _, other in pairs]
    greedy = not sampled
    kind = f"{engine:13s}{dtype:9s}{'greedy' if greedy else 'sampled':8s}"
    print(f"    {kind} cut    {compared(left, right, greedy=greedy)}")
    other = compared(whole, backwards[::-1], greedy=greedy)
    print(f"    {'':{len(kind)}s} uncut  {other}", flush=True)


def _inner_cut(whole: Played, number: int) -> list[Cut]:
    """One cut of a kind that changes how the rest is computed."""
    drawn = random.Random(f"bfloat16 {number}")
    first = whole.rollout.progress.turns[1].start
    while True:
        (cut,) = random_cuts(whole.rollout, drawn, most=1, live=False)
        if cut.length > first:
            return [cut]


def show(engines: Sequence[str], number: int = 300) -> None:
    """Print a table; on vLLM only greedily, for its noise begins anew at a cut."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    transformers_logging.disable_progress_bar()
    print(f"bf16_cuts · rollouts of which one cut changes a token, {number} conversations")
    for size in SIZES:
        for dtype in ("float32", "bfloat16"):
            with tempfile.TemporaryDirectory() as scratch:
                folder = Path(scratch)
                num_parameters = build(folder, size, dtype)
                print(f"  {size}, {num_parameters:,} parameters")
                for engine in engines:
                    for sampled in (False,) if engine == "vllm" else (False, True):
                        asyncio.run(measure(engine, folder, dtype, number, sampled=sampled))
