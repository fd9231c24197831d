"""Cuts that come at awkward moments, and what a cancelled worker leaves behind."""

import asyncio
import itertools

import pytest

from consumers.rollout.agents.single_turn import SingleTurnAgent
from consumers.rollout.agents.state import CutReason
from consumers.rollout.agents.tool import ToolAgent
from consumers.rollout.tools.box import ToolBox
from consumers.rollout.tools.tool import tool
from infra.roles.registry import resolve
from schemas.work import Rollout, Snapshot
from tests.factories.agent_runs import CALL, OPENING, essence, make_loop, run_uncut
from tests.factories.rollouts import ScriptedEngine, make_task, talk

TURNS = ["add " + CALL.format("3+4") + "<|im_end|>", "it is 7.<|im_end|>"]
TASK = make_task(tools=("calculator",))


class Deaf(ScriptedEngine):
    """Ends its turn as if the interrupt came a moment too late."""

    async def interrupt(self, request_ids=None):
        for stop in self._running.values():
            self.pause_at.clear()
            stop.set()
            stop.clear()


class Late(ScriptedEngine):
    """Knows a request only some time after it was made."""

    def __init__(self, script) -> None:
        super().__init__(script)
        self.made, self.go_on = asyncio.Event(), asyncio.Event()

    async def generate(self, request):
        self.made.set()
        await self.go_on.wait()
        async for item in super().generate(request):
            yield item


def script_of(renderer, turns=TURNS):
    return talk(renderer, turns, opening=OPENING)


async def cut_deaf(renderer, turns, pause_at):
    engine = Deaf(script_of(renderer, turns), pause_at=[pause_at])
    loop = make_loop(engine, renderer)
    state = loop.begin(TASK)
    running = asyncio.ensure_future(loop.run(state))
    await engine.paused.wait()
    await loop.cut(state, CutReason.SYNC)
    return await asyncio.wait_for(running, 10)


async def test_a_turn_that_ends_before_the_cut_is_judged(renderer):
    whole = await run_uncut(make_loop(ScriptedEngine(script_of(renderer)), renderer), TASK)
    start = whole.progress.num_prompt_tokens
    snapshot = await cut_deaf(renderer, TURNS, start + 3)
    assert isinstance(snapshot, Snapshot)
    assert snapshot.phase == "processing_tools", "the calls have not begun"
    loop = make_loop(ScriptedEngine(script_of(renderer)), renderer)
    assert essence(await loop.run(loop.restore(snapshot))) == essence(whole)
    rollout = await cut_deaf(renderer, ["no calls<|im_end|>"], start + 3)
    assert isinstance(rollout, Rollout)
    assert rollout.status == "completed"


async def test_a_cut_before_the_engine_knows_the_request_is_asked_again(renderer):
    engine = Late(script_of(renderer))
    loop = make_loop(engine, renderer)
    state = loop.begin(TASK)
    running = asyncio.ensure_future(loop.run(state))
    await engine.made.wait()
    await loop.cut(state, CutReason.SYNC)
    engine.go_on.set()
    snapshot = await asyncio.wait_for(running, 10)
    assert isinstance(snapshot, Snapshot)
    assert snapshot.progress.tokens.num_sampled == 1


async def test_many_are_cut_by_telling_the_engine_once(renderer):
    engine = ScriptedEngine(script_of(renderer), pause_at=range(2000))
    told = []
    interrupt = engine.interrupt

    async def count(request_ids):
        told.append(set(request_ids))
        await interrupt(request_ids)

    engine.interrupt = count
    loop = make_loop(engine, renderer)
    states = [loop.begin(make_task(f"3.{n}", tools=("calculator",))) for n in range(5)]
    running = [asyncio.ensure_future(loop.run(state)) for state in states]
    while not all(state.request_id for state in states):
        await asyncio.sleep(0)
    await loop.cut_all(states[:4], CutReason.SYNC)
    assert await asyncio.gather(*running[:4]) == [state.task for state in states[:4]]
    assert [len(names) for names in told] == [4]
    assert not running[4].done()
    running[4].cancel()


async def test_nothing_runs_on_after_a_cancelled_rollout(renderer):
    begun, ended = asyncio.Event(), asyncio.Event()

    @tool(repeatable=False)
    async def work() -> str:
        """Work."""
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    turns = ['<tool_call>{"name": "work"}</tool_call><|im_end|>']
    engine = ScriptedEngine(script_of(renderer, turns))
    loop = make_loop(engine, renderer, tools=ToolBox({"work": work}))
    running = asyncio.ensure_future(loop.run(loop.begin(make_task(tools=("work",)))))
    await asyncio.wait_for(begun.wait(), 10)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await asyncio.wait_for(ended.wait(), 10)


async def test_a_cancelled_rollout_frees_its_request(renderer):
    whole = await run_uncut(make_loop(ScriptedEngine(script_of(renderer)), renderer), TASK)
    engine = ScriptedEngine(script_of(renderer), pause_at=[whole.progress.num_prompt_tokens + 2])
    loop = make_loop(engine, renderer)
    running = asyncio.ensure_future(loop.run(loop.begin(TASK)))
    await engine.paused.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert engine._running == {}


async def test_every_request_is_admitted_first(renderer):
    admitted = []

    async def admit():
        admitted.append(len(engine.requests))

    engine = ScriptedEngine(script_of(renderer))
    await run_uncut(make_loop(engine, renderer, admit=admit), TASK)
    assert admitted == [0, 1]


async def test_time_is_booked_where_it_went(renderer):
    """A clock that ticks at every look: each measured stretch is one tick long."""
    ticks = itertools.count()
    loop = make_loop(
        ScriptedEngine(script_of(renderer)), renderer, clock=lambda: float(next(ticks))
    )
    rollout = await run_uncut(loop, TASK)
    timings = rollout.progress.timings
    assert (timings.generating_s, timings.tools_s, timings.waiting_s) == (2.0, 1.0, 2.0)


def test_agents_by_name():
    assert resolve("agent", "single_turn") is SingleTurnAgent
    assert resolve("agent", "tool") is ToolAgent
    assert SingleTurnAgent.answered_by() == ()
    assert ToolAgent.answered_by() == ("tool",)
