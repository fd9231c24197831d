"""A two-turn tool conversation on real engines, cut at every token: nobody can tell afterwards."""

import dataclasses
from collections.abc import AsyncIterator, Collection

import pytest

from consumers.reward.view import RolloutView
from consumers.rollout.agents.loop import AgentLoop
from consumers.rollout.agents.state import CutReason, RolloutState
from consumers.rollout.engines.base import Engine, Finish, GenerateRequest, TokenChunk
from consumers.rollout.tools.box import ToolBox
from infra.recipes.demo.calls import CompactCalls
from infra.recipes.demo.reward import exact_sum
from infra.recipes.demo.task import CALL, CALL_END, EOS, TOKEN_IDS, split
from infra.text.renderer import Renderer
from schemas.chat import ChatMessage, Speaker
from schemas.work import (
    Budgets,
    RewardData,
    Rollout,
    RolloutStatus,
    RolloutTask,
    Sampling,
    Snapshot,
)
from tests.e2e.conftest import CONTEXT

TOOLS = ("infra.recipes.demo.tool:add",)
PROMPT_TOKENS, SAMPLED_TOKENS = 9, 11
PROBLEM = split()[1][0]
pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]


class CutsAt:
    """A real engine that is interrupted when the sequence has a given length."""

    def __init__(self, inner: Engine) -> None:
        self.inner = inner
        self.loop: AgentLoop | None = None
        self.state: RolloutState | None = None
        self.length: int | None = None

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk | Finish]:
        left = None if self.length is None else self.length - len(request.token_ids)
        if left is None or not 0 <= left < request.max_tokens:
            async for item in self.inner.generate(request):
                yield item
            return
        if left:
            limited = dataclasses.replace(request, max_tokens=left)
            async for item in self.inner.generate(limited):
                if isinstance(item, TokenChunk):
                    yield item
                elif item.reason == "stop":
                    yield item
                    return
        self.length = None
        await self.loop.cut(self.state, CutReason.SYNC)
        yield Finish(reason="interrupted")

    async def interrupt(self, request_ids: Collection[str] | None = None) -> None:
        await self.inner.interrupt(request_ids)


async def admit() -> None:
    """The gate is open."""


def task(**changes) -> RolloutTask:
    values = {
        "rollout_id": "7.1",
        "group": 7,
        "index": 1,
        "row": 0,
        "agent": "tool",
        "messages": (ChatMessage(role=Speaker.USER, content=PROBLEM.prompt),),
        "prompt_hash": "",
        "tools": TOOLS,
        "sampling": Sampling(temperature=0.0),
        "budgets": Budgets(
            max_prompt_tokens=16, max_response_tokens=18, max_turn_tokens=18, max_turns=2
        ),
        "reward_data": RewardData(ground_truth=PROBLEM.answer),
    }
    return RolloutTask.model_validate(values | changes)


async def play(engine: Engine, folder, asked: RolloutTask, cuts: Collection[int]) -> Rollout:
    """One rollout; each fragment by a worker of its own, snapshots travelling as JSON."""
    work: RolloutTask | Snapshot = asked
    pending = sorted(cuts)
    for number in range(len(pending) + 1):
        wrapped = CutsAt(engine)
        loop = AgentLoop(
            engine=wrapped,
            renderer=Renderer.load(folder),
            parser=CompactCalls(),
            tools=ToolBox.load(TOOLS, timeout_s=10),
            worker=f"rollout-{number}",
            admit=admit,
        )
        state = loop.restore(work) if isinstance(work, Snapshot) else loop.begin(work)
        wrapped.loop, wrapped.state = loop, state
        wrapped.length = pending[number] if number < len(pending) else None
        result = await loop.run(state)
        if isinstance(result, Rollout):
            return Rollout.model_validate_json(result.model_dump_json())
        work = type(result).model_validate_json(result.model_dump_json())
    raise AssertionError("cut more often than asked")


def reward(rollout: Rollout) -> dict[str, float]:
    return exact_sum(RolloutView(rollout.model_dump(mode="json")))


def assert_same(cut: Rollout, whole: Rollout) -> None:
    assert cut.progress.tokens.token_ids.tolist() == whole.progress.tokens.token_ids.tolist()
    assert cut.progress.tokens.mask == whole.progress.tokens.mask
    assert cut.progress.tokens.versions == whole.progress.tokens.versions
    assert cut.progress.tokens.logprobs == pytest.approx(whole.progress.tokens.logprobs, abs=1e-4)
    assert cut.progress.messages == whole.progress.messages
    assert cut.progress.turns == whole.progress.turns
    assert (cut.status, cut.finish_reason) == (whole.status, whole.finish_reason)
    assert reward(cut) == reward(whole)


async def test_the_uncut_conversation_calls_the_tool_and_answers(engine, caller_folder) -> None:
    whole = await play(engine, caller_folder, task(), [])
    assert whole.progress.messages[1].tool_calls
    assert whole.progress.tokens.num_sampled == SAMPLED_TOKENS
    assert len(whole.progress.tool_results) == 1
    assert reward(whole)["called"] == 1.0


@pytest.mark.parametrize("sampled", range(SAMPLED_TOKENS + 1))
async def test_a_cut_at_any_token_changes_nothing(engine, caller_folder, sampled: int) -> None:
    whole = await play(engine, caller_folder, task(), [])
    positions = [n for n, mask in enumerate(whole.progress.tokens.mask_array) if mask]
    where = positions[sampled] if sampled < len(positions) else len(whole.progress.tokens)

    cut = await play(engine, caller_folder, task(), [where])

    assert_same(cut, whole)
    # before the first token the plain task goes back; behind the last there is nothing to cut
    is_snapshot = 0 < sampled < SAMPLED_TOKENS
    assert len(cut.progress.interruptions) == is_snapshot
    assert cut.progress.num_resumed_elsewhere == is_snapshot
    if is_snapshot:
        assert cut.progress.interruptions[0].at_token == where


async def test_cuts_at_every_token_of_one_rollout_change_nothing(engine, caller_folder) -> None:
    whole = await play(engine, caller_folder, task(), [])
    positions = [n for n, mask in enumerate(whole.progress.tokens.mask_array) if mask]
    cut = await play(engine, caller_folder, task(), positions)
    assert_same(cut, whole)
    assert len(cut.progress.interruptions) == SAMPLED_TOKENS - 1


@pytest.mark.parametrize("inside", range(1, 7))
async def test_a_call_that_straddles_the_cut_is_executed_once(
    engine, caller_folder, inside: int
) -> None:
    whole = await play(engine, caller_folder, task(), [])
    tokens = whole.progress.tokens.token_ids.tolist()
    opened, closed = tokens.index(TOKEN_IDS[CALL]), tokens.index(TOKEN_IDS[CALL_END])
    assert opened + inside <= closed
    cut = await play(engine, caller_folder, task(), [opened + inside])
    assert [result.content for result in cut.progress.tool_results] == [PROBLEM.answer]
    assert len(cut.progress.interruptions) == 1


@pytest.mark.parametrize("limit", [3, 9, 13, 15])
async def test_the_response_budget_is_never_granted_again(
    engine, caller_folder, limit: int
) -> None:
    budgets = Budgets(
        max_prompt_tokens=16, max_response_tokens=limit, max_turn_tokens=18, max_turns=2
    )
    whole = await play(engine, caller_folder, task(budgets=budgets), [])
    assert whole.status is RolloutStatus.TRUNCATED
    positions = [n for n, mask in enumerate(whole.progress.tokens.mask_array) if mask]
    for where in positions:
        cut = await play(engine, caller_folder, task(budgets=budgets), [where])
        assert_same(cut, whole)
        assert len(cut.progress.tokens) - PROMPT_TOKENS <= limit


async def test_sampled_with_a_seed_a_cut_changes_nothing_where_noise_has_a_position(
    engine, caller_folder
) -> None:
    """The transformers engine; on vLLM the rollout still ends as it may."""
    for seed in range(5):
        asked = task(sampling=Sampling(temperature=1.0, seed=seed))
        whole = await play(engine, caller_folder, asked, [])
        again = await play(engine, caller_folder, asked, [])
        assert again.progress.tokens.token_ids.tolist() == whole.progress.tokens.token_ids.tolist()
        for where in [n for n, mask in enumerate(whole.progress.tokens.mask_array) if mask]:
            cut = await play(engine, caller_folder, asked, [where])
            assert len(cut.progress.tokens) <= CONTEXT
            if type(engine).__name__ == "TransformersEngine":
                assert_same(cut, whole)
            else:
                end = cut.progress.tokens.token_ids[-1]
                stops = {TOKEN_IDS[EOS], TOKEN_IDS[CALL_END]}
                assert cut.status is RolloutStatus.TRUNCATED or end in stops
