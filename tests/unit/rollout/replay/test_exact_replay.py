"""A recorded rollout is repeated by the agent loop, wherever it was cut and however it ended."""

from dataclasses import replace

import pytest

from consumers.rollout.agents.base import Agent
from consumers.rollout.agents.state import CutReason
from consumers.rollout.engines.base import Finish
from consumers.rollout.interactions.base import Interaction
from consumers.rollout.replay import parts
from consumers.rollout.tools.box import ToolBox
from consumers.rollout.tools.calculator import calculator
from consumers.rollout.tools.tool import tool
from schemas.chat import ChatMessage, Speaker
from schemas.work import AgentPhase, Rollout, Sampling
from tests.factories.agent_runs import (
    CALL,
    OPENING,
    cut_places,
    make_loop,
    run_uncut,
    run_until_paused,
    run_with_cuts,
)
from tests.factories.replays import changed, replay, stage
from tests.factories.rollouts import ScriptedEngine, make_task, talk

HERE = "tests.unit.rollout.replay.test_exact_replay"
TURNS = [f"so {CALL.format('3+4')}{CALL.format('7*x')}<|im_end|>", "it is 7<|im_end|>"]
BROKEN = ["<tool_call>{oops</tool_call><|im_end|>", "sorry<|im_end|>"]


class Asker(Interaction):
    """Asks once; what it asks is as long as its class says."""

    text = "and then?"

    async def reply(self, messages):
        answers = sum(message.role is Speaker.ASSISTANT for message in messages)
        return self.text if answers == 1 else None


class LongAsker(Asker):
    text = "x" * 3000


class Pupil(Agent):
    """Counts turns, opens with words of its own, and is asked again."""

    interaction = f"{HERE}:Asker"

    def opening(self):
        return (ChatMessage(role=Speaker.SYSTEM, content="be brief"), *self.task.messages)


class Tired(Pupil):
    interaction = f"{HERE}:LongAsker"


@tool(pins=True)
def shell(expression: str) -> str:
    """Keeps something in its process.

    Args:
        expression: Whatever.
    """
    return f"ran {expression}"


async def recorded(renderer, task, turns, *, tools=None) -> Rollout:
    script = talk(renderer, turns, opening=OPENING)
    parts = {} if tools is None else {"tools": tools}
    return await run_uncut(make_loop(ScriptedEngine(script, chunk=3), renderer, **parts), task)


@pytest.mark.parametrize("turns", [TURNS, BROKEN], ids=["calls", "malformed call"])
@pytest.mark.parametrize("reason", [CutReason.SYNC, CutReason.LEAVE])
async def test_a_rollout_is_equal_wherever_it_was_cut(renderer, turns, reason):
    task = make_task(tools=("calculator",))
    whole = await recorded(renderer, task, turns)
    edges = {edge for turn in whole.progress.turns for edge in (turn.start, turn.stop)}
    places = sorted({*cut_places(whole)[::9], *edges.intersection(cut_places(whole))})
    on, script = stage(renderer, {"calculator": calculator}), talk(renderer, turns, opening=OPENING)
    for place in places:
        rollout = await run_with_cuts(
            task, script, renderer, [place], versions_rise=True, reason=reason
        )
        replayed = await replay(on, rollout, task)
        assert replayed.difference is None, place
        cuts = [step for step in replayed.steps if step.event == "cut"]
        assert [step.stop for step in cuts] == [c.at_token for c in rollout.progress.interruptions]
        assert {step.worker for step in replayed.steps} >= {rollout.worker}


async def test_cuts_follow_each_other_at_the_same_token(renderer):
    task = make_task(tools=("calculator",))
    whole = await recorded(renderer, task, TURNS)
    script = talk(renderer, TURNS, opening=OPENING)
    on = stage(renderer, {"calculator": calculator})
    for place in cut_places(whole)[1::5]:
        rollout = await run_with_cuts(
            task, script, renderer, [place, place, place], reason=CutReason.INTERVAL
        )
        assert (await replay(on, rollout, task)).difference is None, place


@pytest.mark.parametrize(
    ("changes", "end"),
    [
        ({"max_turn_tokens": 7}, "max_turn_tokens"),
        ({"max_response_tokens": 9}, "length"),
        ({"max_response_tokens": 95}, "length"),
        ({"max_turns": 1}, "max_turns"),
        ({"min_tokens": 3, "sampling": Sampling(stop=("is",))}, "stop"),
        ({"sampling": Sampling(stop=('"}}</tool_call>',))}, "stop"),
        ({"sampling": Sampling(options={"repetition_penalty": 1.1})}, "stop"),
    ],
)
async def test_however_it_ended_it_is_equal(renderer, changes, end):
    task = make_task(tools=("calculator",), **changes)
    rollout = await recorded(renderer, task, TURNS)
    assert rollout.finish_reason == end
    on = stage(renderer, {"calculator": calculator})
    assert (await replay(on, rollout, task)).difference is None


async def test_a_pinned_rollout_is_equal_and_its_tool_does_not_run(renderer, monkeypatch):
    turns = [TURNS[0].replace("calculator", "shell"), TURNS[1]]
    task = make_task(tools=("shell",))
    on = stage(renderer, {"shell": shell})
    rollout = await recorded(renderer, task, turns, tools=ToolBox({"shell": shell}))
    assert rollout.progress.tool_results[0].content == "ran 3+4"
    monkeypatch.setattr(ToolBox, "_call", None)
    assert (await replay(on, rollout, task)).difference is None


@pytest.mark.parametrize(("agent", "end"), [("Pupil", "stop"), ("Tired", "length")])
async def test_replies_come_from_the_record_and_so_does_an_opening_of_the_agents_own(
    renderer, agent, end
):
    task = make_task(agent=f"{HERE}:{agent}", max_response_tokens=60)
    turns = ["one<|im_end|>", "two<|im_end|>"]
    rollout = await recorded(renderer, task, turns)
    assert (rollout.finish_reason, rollout.progress.messages[0].content) == (end, "be brief")
    replayed = await replay(stage(renderer, {}), rollout, task.model_copy(update={"messages": ()}))
    assert replayed.difference is None
    assert next(step.phase for step in replayed.steps if step.event == "reply") == (
        AgentPhase.INTERACTING
    )


async def test_a_reply_that_no_budget_bounds_is_a_difference(renderer, monkeypatch):
    """A record that claims to have had no room left in 2**48 tokens."""
    task = make_task(agent=f"{HERE}:Tired", max_response_tokens=60)
    rollout = await recorded(renderer, task, ["one<|im_end|>"])
    assert rollout.finish_reason == "length"
    monkeypatch.setattr(parts, "_LONGEST_REPLY", 500)
    endless = task.budgets.model_copy(update={"max_response_tokens": 2**48})
    replayed = await replay(
        stage(renderer, {}), rollout, task.model_copy(update={"budgets": endless})
    )
    assert replayed.difference is not None


async def test_versions_that_change_inside_a_request_are_repeated(renderer):
    task = make_task()
    whole = await recorded(renderer, task, ["a longer answer<|im_end|>"])
    count = whole.progress.tokens.num_sampled
    split = [[-1, len(whole.progress.tokens) - count], [4, 2], [5, 1], [9, count - 3]]
    rollout = changed(whole, lambda raw: raw["progress"]["tokens"].update(versions=split))
    replayed = await replay(stage(renderer, {}), rollout, task)
    assert replayed.difference is None
    assert [step.version for step in replayed.steps if step.event == "sampled"] == [4, 5, 9]


class SmallContext(ScriptedEngine):
    """Has room for some tokens less than the budgets."""

    most = 0

    async def generate(self, request):
        left = self.most - len(request.token_ids)
        if left <= 0:
            yield Finish(reason="length")
            return
        async for item in super().generate(replace(request, max_tokens=left)):
            yield item


@pytest.mark.parametrize("cut", [False, True])
async def test_a_context_that_is_full_is_repeated(renderer, cut):
    task = make_task()
    script = talk(renderer, ["a longer answer<|im_end|>"], opening=OPENING)
    SmallContext.most = len(renderer.prompt(task.messages, ())) + 5
    engine = SmallContext(script, pause_at=[SmallContext.most] if cut else [])
    loop = make_loop(engine, renderer)
    work = await run_until_paused(loop, loop.begin(task), engine, CutReason.LEAVE)
    if cut:
        other = make_loop(SmallContext(script), renderer, worker="rollout-1")
        work = await other.run(other.restore(work))
    assert (work.finish_reason, len(work.progress.interruptions)) == ("length", cut)
    assert (await replay(stage(renderer, {}), work, task)).difference is None


def token(at, value):
    def change(raw):
        raw["progress"]["tokens"]["token_ids"][at] = value

    return change


def set_in(*path, to):
    def change(raw):
        for name in path[:-1]:
            raw = raw[name]
        raw[path[-1]] = to

    return change


CHANGES = [
    (token(3, 5), "token 3 (turn 0, prompt)"),
    (token(-3, 60), "messages[4].content"),
    (set_in("progress", "tool_results", 0, "content", to="8"), " (turn 2, tool)"),
    (set_in("progress", "tool_results", 1, "call", "id", to="3.1:0:7"), "tool call 3.1:0:1"),
    (
        set_in("progress", "messages", 1, "tool_calls", 0, "function", "name", to="rm"),
        "messages[1].tool_calls[0].function.name",
    ),
    (set_in("progress", "messages", 2, "content", to="8"), "messages[2].content"),
    (set_in("progress", "turns", 1, "finish_reason", to="length"), "turns[1].finish_reason"),
    (set_in("progress", "num_resumed_elsewhere", to=7), "num_resumed_elsewhere"),
    (set_in("progress", "interruptions", 0, "version", to=9), "interruptions[0].version"),
    (set_in("progress", "interruptions", 0, "at_token", to=2000), "cut at token 2000"),
    (set_in("progress", "turns", 3, "kind", to="user"), "token "),
    (set_in("status", to="truncated"), "status"),
    (set_in("finish_reason", to="length"), "finish_reason"),
    (set_in("agent", to="no.such:Agent"), "after token 0"),
]


@pytest.mark.parametrize(("change", "where"), CHANGES)
async def test_what_was_changed_in_a_record_is_named(renderer, change, where):
    task = make_task(tools=("calculator",))
    whole = await recorded(renderer, task, TURNS)
    script = talk(renderer, TURNS, opening=OPENING)
    rollout = await run_with_cuts(task, script, renderer, cut_places(whole)[4:5])
    other = changed(rollout, change)
    task = task.model_copy(update={"agent": other.agent})
    replayed = await replay(stage(renderer, {"calculator": calculator}), other, task)
    assert where in replayed.difference.where
    assert replayed.difference.recorded != replayed.difference.replayed


async def test_a_loop_that_judges_otherwise_than_then_is_named(renderer):
    task = make_task(tools=("calculator",))
    rollout = await recorded(renderer, task, TURNS)
    on = stage(renderer, {"calculator": calculator})
    stricter = task.model_copy(update={"budgets": task.budgets.model_copy(update={"max_turns": 1})})
    replayed = await replay(on, rollout, stricter)
    assert replayed.difference.where.startswith("token ")
    assert "ends at" in replayed.difference.replayed
    looser = make_task(max_turn_tokens=9)
    short = await recorded(renderer, make_task(max_turn_tokens=7), ["it is as it is<|im_end|>"])
    replayed = await replay(on, short, looser)
    assert replayed.difference.where == "finish_reason"
