"""vLLM's own online FP8: weights per output channel, activations per token, in bfloat16."""

import asyncio
import copy

import pytest
import torch

from tests.contract.harness import make_engine, prompt, request, run, scored, two_versions, underway
from tests.factories import models

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

METHOD = "fp8_per_channel"
SEED = 10


class Fp8Linear(torch.nn.Module):
    """In plain torch: both operands rounded to FP8, multiplied in float32."""

    def __init__(self, linear):
        super().__init__()
        self.weight, self.weight_scale = to_fp8(linear.weight.detach())

    def forward(self, x):
        given, scale = to_fp8(x)
        product = given.float() @ self.weight.float().T
        return (product * scale * self.weight_scale.T).to(x.dtype)


def to_fp8(rows):
    """Each row scaled to the range of float8_e4m3fn, and the scales as a column."""
    scale = rows.float().abs().amax(-1, keepdim=True) / torch.finfo(torch.float8_e4m3fn).max
    return (rows.float() / scale).to(torch.float8_e4m3fn), scale


def emulated(model):
    model = copy.deepcopy(model)
    for layer in model.model.layers:
        for block in (layer.self_attn, layer.mlp):
            for name, linear in list(block.named_children()):
                if isinstance(linear, torch.nn.Linear):
                    setattr(block, name, Fp8Linear(linear))
    return model


def distance(model, turns) -> float:
    """Mean difference of log-probabilities of the tokens that were sampled, in nats."""
    pairs = [
        (found, expected)
        for start, turn in turns
        for found, expected in zip(turn.logprobs, scored(model, start, turn.token_ids), strict=True)
    ]
    return sum(abs(found - expected) for found, expected in pairs) / len(pairs)


async def test_versions_are_quantised_as_they_come(tmp_path):
    """Rounding of bfloat16 moves activations over the edges of FP8, so that only the mean tells the
    quantised model from the other one."""
    published = [
        models.build(tmp_path / f"model{i}", tied=False, seed=SEED + i, dtype="bfloat16")
        for i in (0, 1)
    ]
    weights = two_versions(tmp_path, published[1], dtype="bfloat16")
    engine = make_engine("vllm", tmp_path / "model0", dtype="bfloat16", quantization=METHOD)
    await engine.start(weights[0])
    held = []
    for version in (0, 1, 0):
        if engine.serving().version != version:
            running = await underway(engine, request("r", prompt(5), max_tokens=240))
            await engine.load_weights(weights[version])
            assert set((await asyncio.wait_for(running, 60)).versions) == {0, 1}
        assert engine.serving().fingerprint == weights[version].fingerprint
        held += await engine._call("warren_digest")
        turns = [
            (prompt(length), await run(engine, request("t", prompt(length), max_tokens=60)))
            for length in (9, 40, 100)
        ]
        as_quantised = distance(emulated(published[version]), turns)
        assert as_quantised < 0.15
        assert as_quantised < 0.8 * distance(published[version], turns)
        assert distance(published[1 - version], turns) > 1
    assert held[0] == held[2] != held[1]
    await engine.close()
