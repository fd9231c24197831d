"""Sampling options over cuts, with a real model: cutting anywhere changes nothing."""

from collections.abc import AsyncIterator, Collection
from contextlib import aclosing

import pytest
import pytest_asyncio
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from consumers.rollout.agents.loop import AgentLoop
from consumers.rollout.agents.state import CutReason, RolloutState
from consumers.rollout.engines.base import Finish, GenerateRequest, TokenChunk
from consumers.rollout.engines.transformers.engine import TransformersEngine
from infra.text.renderer import Renderer
from schemas.work import Rollout, RolloutTask, Sampling, Snapshot
from tests.factories.agent_runs import cut_places, essence, make_loop
from tests.factories.loading import starting
from tests.factories.rollouts import chatml_folder, make_task

VOCAB_SIZE = 330
EOS = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model that talks in bytes and often says its end token."""
    folder = chatml_folder(tmp_path_factory.mktemp("talker"))
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            vocab_size=VOCAB_SIZE,
            max_position_embeddings=256,
            eos_token_id=EOS,
            tie_word_embeddings=False,
        )
    )
    with torch.no_grad():
        model.lm_head.weight.mul_(20)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def talking(folder):
    return Renderer.load(folder)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(folder) -> AsyncIterator[TransformersEngine]:
    engine = TransformersEngine(
        model_folder=folder,
        dtype="float32",
        slots=4,
        max_model_len=256,
        options={"device": "cpu", "threads": 1},
    )
    await engine.start(starting(folder, "float32"))
    yield engine
    await engine.close()


class CutsAt:
    """Passes one token at a time on, and cuts its rollout at a length."""

    def __init__(self, inner: TransformersEngine, length: int | None) -> None:
        self.inner = inner
        self.length = length
        self.loop: AgentLoop
        self.state: RolloutState

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk | Finish]:
        length = len(request.token_ids)
        if length == self.length:
            await self.loop.cut(self.state, CutReason.SYNC)
            yield Finish(reason="interrupted")
            return
        async with aclosing(self.inner.generate(request)) as stream:
            async for item in self._one_by_one(stream, length):
                yield item

    async def _one_by_one(
        self, stream: AsyncIterator[TokenChunk | Finish], length: int
    ) -> AsyncIterator[TokenChunk | Finish]:
        async for item in stream:
            if isinstance(item, Finish):
                yield item
                return
            for token_id, logprob in zip(item.token_ids, item.logprobs, strict=True):
                yield TokenChunk(
                    token_ids=(token_id,), logprobs=(logprob,), policy_version=item.policy_version
                )
                length += 1
                if length == self.length:
                    await self.loop.cut(self.state, CutReason.SYNC)
                    yield Finish(reason="interrupted")
                    return

    async def interrupt(self, request_ids: Collection[str] | None = None) -> None:
        await self.inner.interrupt(request_ids)


async def play(engine, renderer, asked: RolloutTask, cuts: Collection[int]) -> Rollout:
    """One rollout; each fragment by a worker of its own, snapshots travelling as JSON."""
    work: RolloutTask | Snapshot = asked
    pending = [*sorted(cuts), None]
    for number, length in enumerate(pending):
        wrapped = CutsAt(engine, length)
        loop = make_loop(wrapped, renderer, worker=f"rollout-{number}")  # type: ignore[arg-type]
        state = loop.restore(work) if isinstance(work, Snapshot) else loop.begin(work)
        wrapped.loop, wrapped.state = loop, state
        result = await loop.run(state)
        if isinstance(result, Rollout):
            return Rollout.model_validate_json(result.model_dump_json())
        work = type(result).model_validate_json(result.model_dump_json())
    raise AssertionError("cut more often than asked")


def assert_same(cut: Rollout, whole: Rollout) -> None:
    one, other = essence(cut), essence(whole)
    assert one.pop("logprobs") == pytest.approx(other.pop("logprobs"), abs=1e-4)
    assert one == other


sampling = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.7, 1.0, 1.5]),
    top_p=st.sampled_from([1.0, 0.9]),
    top_k=st.sampled_from([0, 40]),
    min_p=st.sampled_from([0.0, 0.02, 0.3]),
    stop=st.lists(st.text("ehtsu \n<", min_size=1, max_size=2), max_size=3).map(tuple),
    seed=st.integers(0, 1000),
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
@pytest.mark.asyncio(loop_scope="module")
async def test_cutting_anywhere_changes_nothing(engine, talking, data):
    asked = make_task(
        agent="single_turn",
        sampling=data.draw(sampling),
        min_tokens=data.draw(st.sampled_from([0, 0, 1, 7, 20])),
        max_turn_tokens=data.draw(st.sampled_from([20, 48])),
    )
    whole = await play(engine, talking, asked, [])
    cuts = data.draw(st.sets(st.sampled_from(cut_places(whole)), min_size=1, max_size=4))
    assert_same(await play(engine, talking, asked, cuts), whole)
    turn = whole.progress.turns[-1]
    early = whole.progress.tokens.token_ids[turn.start :][: asked.budgets.min_tokens]
    assert len(early) == asked.budgets.min_tokens
    assert EOS not in early
