"""What the engine does wrong is noticed before it is recorded."""

import math

import pytest

from consumers.rollout.agents.state import RolloutFailed
from consumers.rollout.engines.base import EngineFailed, Finish, TokenChunk
from tests.factories.agent_runs import OPENING, make_loop
from tests.factories.rollouts import ScriptedEngine, make_task, talk


class Replaying(ScriptedEngine):
    """Yields given items, whatever it is asked."""

    def __init__(self, *items) -> None:
        super().__init__(lambda token_ids: 0)
        self.items = items

    async def generate(self, request):
        self.requests.append(request)
        for item in self.items:
            yield item


def chunk(*token_ids, logprobs=None, version=0):
    return TokenChunk(
        token_ids=token_ids,
        logprobs=tuple([-1.0] * len(token_ids) if logprobs is None else logprobs),
        policy_version=version,
    )


async def outcome(renderer, *items, **budgets):
    loop = make_loop(Replaying(*items), renderer)
    return await loop.run(loop.begin(make_task(agent="single_turn", **budgets)))


@pytest.mark.parametrize(
    "items",
    [
        (chunk(5, 6),),
        (chunk(5, 6, logprobs=[-1.0]), Finish(reason="stop")),
        (chunk(2, 6), Finish(reason="length")),
        (chunk(2), chunk(6), Finish(reason="stop")),
        (chunk(5, 6, 7, 8), Finish(reason="length")),
        (Finish(reason="stop"),),
    ],
    ids=["no finish", "few logprobs", "past stop", "past stop later", "too many", "nothing"],
)
async def test_a_broken_protocol_is_the_engines_failure(renderer, items):
    with pytest.raises(EngineFailed):
        await outcome(renderer, *items, max_response_tokens=3)


@pytest.mark.parametrize("logprob", [math.nan, math.inf, -math.inf])
async def test_a_logprob_that_is_no_number_is_infrastructure(renderer, logprob):
    with pytest.raises(RolloutFailed, match="non-finite") as failure:
        await outcome(renderer, chunk(5, logprobs=[logprob]), Finish(reason="stop"))
    assert failure.value.kind == "infra"


async def test_versions_never_go_back(renderer):
    with pytest.raises(RolloutFailed, match="cannot go on with 2") as failure:
        await outcome(renderer, chunk(5, version=3), chunk(6, version=2), Finish(reason="stop"))
    assert failure.value.kind == "infra"


async def test_weights_that_change_inside_a_turn_are_recorded(renderer):
    rollout = await outcome(
        renderer, chunk(5, version=1), chunk(6, 2, version=2), Finish(reason="stop")
    )
    versions = rollout.progress.tokens.version_array.tolist()
    assert versions[rollout.progress.num_prompt_tokens :] == [1, 2, 2]


async def test_a_refused_request_is_the_rollouts_failure(renderer):
    engine = ScriptedEngine(talk(renderer, ["x"], opening=OPENING))
    engine.failure = ValueError("no room in the context")
    loop = make_loop(engine, renderer)
    with pytest.raises(RolloutFailed, match="no room") as failure:
        await loop.run(loop.begin(make_task()))
    assert failure.value.kind == "data"


async def test_a_dead_engine_is_passed_on(renderer):
    engine = ScriptedEngine(talk(renderer, ["x"], opening=OPENING))
    engine.failure = EngineFailed("gone")
    loop = make_loop(engine, renderer)
    with pytest.raises(EngineFailed, match="gone"):
        await loop.run(loop.begin(make_task()))


async def test_an_engine_whose_context_is_full_ends_the_rollout(renderer):
    rollout = await outcome(renderer, chunk(5, 6), Finish(reason="length"))
    assert (rollout.status, rollout.finish_reason) == ("truncated", "length")
    assert rollout.progress.tokens.num_sampled == 2


async def test_an_engine_with_stop_tokens_of_its_own(renderer):
    rollout = await outcome(renderer, chunk(5, 6), Finish(reason="stop"))
    assert (rollout.status, rollout.finish_reason) == ("completed", "stop")
