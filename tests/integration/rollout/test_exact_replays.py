"""Conversations of a real engine, cut anywhere on a fleet of workers: each replay is its record."""

import random
from collections import Counter

import pytest

from consumers.rollout.engines.transformers.engine import TransformersEngine
from schemas.work import Rollout
from tests.factories.cuts.conversations import EveryTurnCalls, task, toolbox
from tests.factories.cuts.cutting import Worker, play_all
from tests.factories.cuts.plan import random_cuts
from tests.factories.loading import starting
from tests.factories.models import CONTEXT
from tests.factories.replays import replay, stage

CONVERSATIONS = 24
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
async def fleet(tiny_model):
    engine = TransformersEngine(
        model_folder=tiny_model, dtype="float32", slots=8, max_model_len=CONTEXT, options={}
    )
    await engine.start(starting(tiny_model, "float32"))
    yield [Worker(f"rollout-{number}", engine, tiny_model) for number in range(3)]
    await engine.close()


async def never(call_id: str) -> None:
    raise AssertionError(f"call {call_id} was run")


async def test_random_conversations_are_equal_wherever_they_were_cut(fleet):
    tasks = [task(number, sampled=number % 2 == 0) for number in range(CONVERSATIONS)]
    whole = await play_all(tasks, fleet[:1], [()] * len(tasks), at_once=8)
    cuts = [random_cuts(one.rollout, random.Random(n)) for n, one in enumerate(whole)]
    played = await play_all(tasks, fleet, cuts, at_once=8)
    renderer = fleet[0].loop._renderer
    on = stage(renderer, toolbox(never)._tools, parser=EveryTurnCalls())
    seen: Counter[str] = Counter()
    for one, asked in zip([*whole, *played], tasks * 2, strict=True):
        replayed = await replay(on, one.rollout, asked)
        assert replayed.difference is None, (asked.rollout_id, replayed.difference)
        count(one.rollout, seen)
    print(dict(seen))
    wanted = {"cut", "elsewhere", "completed", "tool", "user"}
    assert not {
        name for name in (*wanted, "length", "max_turn_tokens", "max_turns") if not seen[name]
    }


def count(rollout: Rollout, seen: "Counter[str]") -> None:
    progress = rollout.progress
    seen.update([rollout.status, rollout.finish_reason])
    seen.update(["cut"] * bool(progress.interruptions))
    seen.update(["elsewhere"] * bool(progress.num_resumed_elsewhere))
    seen.update({turn.kind for turn in progress.turns})
