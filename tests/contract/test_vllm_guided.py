"""Guided decoding is vLLM's own; it is passed through as data and shows in the logprobs."""

import json
import math
import re

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from consumers.rollout.engines.base import GenerateRequest
from consumers.rollout.engines.vllm.engine import VllmEngine
from infra.text.renderer import Renderer
from tests.contract.harness import Turn, request, run, underway
from tests.factories.loading import starting
from tests.factories.rollouts import chatml_folder

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

EOS = 2
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}},
    "required": ["a"],
    "additionalProperties": False,
}


CONFIG = LlamaConfig(
    hidden_size=128,
    intermediate_size=128,
    num_hidden_layers=1,
    num_attention_heads=4,
    vocab_size=330,
    max_position_embeddings=256,
    eos_token_id=EOS,
    tie_word_embeddings=False,
)


async def test_turns_follow_their_constraint(tmp_path):
    """One engine for all of it, as each takes half a minute to start."""
    folder = chatml_folder(tmp_path / "model")
    newer = chatml_folder(tmp_path / "newer")
    for seed, where in enumerate((folder, newer)):
        torch.manual_seed(seed)
        LlamaForCausalLM(CONFIG).save_pretrained(where)
    engine = VllmEngine(
        model_folder=folder,
        dtype="float32",
        slots=4,
        max_model_len=256,
        options={"kv_cache_memory_bytes": 64 << 20, "guided": True},
    )
    await engine.start(starting(folder, "float32"))
    renderer = Renderer.load(folder)

    def asked(**constraint) -> GenerateRequest:
        return request(
            "g",
            renderer._encode("say"),
            max_tokens=230,
            temperature=1.0,
            stop_token_ids=frozenset({EOS}),
            options={"structured_outputs": constraint},
        )

    def text_of(turn: Turn) -> str:
        assert turn.reason == "stop"
        assert turn.token_ids[-1] == EOS
        return renderer.decode(turn.token_ids[:-1], skip_special=False)

    async def said(**constraint) -> str:
        return text_of(await run(engine, asked(**constraint)))

    turn = await run(engine, asked(regex="[0-7]{4}"))
    assert re.fullmatch("[0-7]{4}", text_of(turn))
    eighth = pytest.approx([math.log(1 / 8)] * 4, abs=1.0)
    assert turn.logprobs[:4] == eighth, "of eight digits, not 330"
    assert turn.logprobs[4] == pytest.approx(0.0, abs=1e-6), "only the end was left"
    assert await said(choice=["the sum", "assistant"]) in ("the sum", "assistant")
    assert json.loads(await said(json=SCHEMA))["a"] in (True, False)
    with pytest.raises(ValueError, match="regex"):
        await said(regex="((")
    assert await said(choice=["sum"]) == "sum"

    crossing = await underway(engine, asked(regex="(01234567){25}"))
    await engine.load_weights(starting(newer, "float32", version=1))
    turn = await crossing
    assert text_of(turn) == "01234567" * 25, "the swap leaves it where it was in its constraint"
    assert set(turn.versions) == {0, 1}
    await engine.close()
