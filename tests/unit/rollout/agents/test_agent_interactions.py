"""Turns without calls are answered by the agent's interaction, also over a cut."""

import asyncio

import pytest

from consumers.rollout.agents.base import Agent
from consumers.rollout.agents.state import CutReason, RolloutFailed
from consumers.rollout.interactions.base import Interaction
from schemas.work import AgentPhase, Rollout, Snapshot
from tests.factories.agent_runs import (
    OPENING,
    cut_places,
    essence,
    make_loop,
    run_uncut,
    run_with_cuts,
)
from tests.factories.rollouts import ScriptedEngine, make_task, talk

HERE = "tests.unit.rollout.agents.test_agent_interactions"
TURNS = ["one<|im_end|>", "two<|im_end|>", "three<|im_end|>"]


class Teacher(Interaction):
    """Asks twice, then is content."""

    def __init__(self, task) -> None:
        super().__init__(task)
        self.asked = 0

    async def reply(self, messages):
        self.asked += 1
        if self.asked > 2:
            return None
        return f"more {self.asked}: {messages[-1].content}"

    def save(self):
        return {"asked": self.asked}

    def restore(self, saved):
        self.asked = saved["asked"]


class Pupil(Agent):
    interaction = f"{HERE}:Teacher"

    def __init__(self, task) -> None:
        super().__init__(task)
        self.turns = 0

    def next_phase(self, turn) -> AgentPhase:
        self.turns += 1
        return super().next_phase(turn)

    def save(self):
        return {"turns": self.turns}

    def restore(self, saved):
        self.turns = saved.get("turns", 0)


class Slow(Teacher):
    begun: asyncio.Event
    may_end: asyncio.Event

    async def reply(self, messages):
        text = await super().reply(messages)
        type(self).begun.set()
        await type(self).may_end.wait()
        return text


class Once(Slow):
    repeatable = False


class Broken(Teacher):
    async def reply(self, messages):
        raise ValueError("no idea")


class Cancelled(Teacher):
    async def reply(self, messages):
        raise asyncio.CancelledError


class Silent(Teacher):
    timeout_s = 0.05

    async def reply(self, messages):
        await asyncio.Event().wait()


def pupil_of(partner):
    return type(f"Pupil{partner.__name__}", (Pupil,), {"interaction": f"{HERE}:{partner.__name__}"})


PupilSlow, PupilOnce = pupil_of(Slow), pupil_of(Once)
PupilBroken, PupilSilent, PupilCancelled = map(pupil_of, (Broken, Silent, Cancelled))


def loop_of(renderer):
    return make_loop(ScriptedEngine(talk(renderer, TURNS, opening=OPENING)), renderer)


async def test_replies_are_appended_as_user_turns(renderer):
    rollout = await run_uncut(loop_of(renderer), make_task(agent=f"{HERE}:Pupil"))
    assert [message.content for message in rollout.progress.messages[1:]] == [
        "one",
        "more 1: one",
        "two",
        "more 2: two",
        "three",
    ]
    kinds = [turn.kind for turn in rollout.progress.turns]
    assert kinds == ["prompt", "assistant", "user", "assistant", "user", "assistant"]
    assert (rollout.status, rollout.finish_reason) == ("completed", "stop")
    span = rollout.progress.turns[2]
    tokens = rollout.progress.tokens
    assert tokens.mask_array[span.start : span.stop].tolist() == [0] * (span.stop - span.start)
    text = renderer.decode(tokens.token_ids[span.start : span.stop].tolist(), skip_special=False)
    assert text == "\n<|im_start|>user\nmore 1: one<|im_end|>\n<|im_start|>assistant\n"


async def test_cuts_keep_the_partners_state(renderer):
    task = make_task(agent=f"{HERE}:Pupil")
    whole = await run_uncut(loop_of(renderer), task)
    script = talk(renderer, TURNS, opening=OPENING)
    places = cut_places(whole)
    for place in places:
        assert essence(await run_with_cuts(task, script, renderer, [place])) == essence(whole)
    assert essence(await run_with_cuts(task, script, renderer, places)) == essence(whole)


@pytest.mark.parametrize("name", ["PupilSlow", "PupilOnce"])
async def test_a_cut_while_the_partner_thinks(renderer, name):
    partner = {"PupilSlow": Slow, "PupilOnce": Once}[name]
    Slow.begun, Slow.may_end = asyncio.Event(), asyncio.Event()
    partner.begun, partner.may_end = asyncio.Event(), asyncio.Event()
    task = make_task(agent=f"{HERE}:{name}")
    loop = loop_of(renderer)
    state = loop.begin(task)
    running = asyncio.ensure_future(loop.run(state))
    await asyncio.wait_for(partner.begun.wait(), 10)
    assert not state.interruptible(CutReason.SYNC)
    await loop.cut(state, CutReason.LEAVE)
    if partner.repeatable:
        snapshot = await asyncio.wait_for(running, 10)
        assert snapshot.phase == "interacting"
        assert snapshot.agent_state == {"agent": {"turns": 1}, "interaction": {"asked": 0}}
        partner.may_end.set()
    else:
        await asyncio.sleep(0.02)
        assert not running.done()
        partner.may_end.set()
        snapshot = await asyncio.wait_for(running, 10)
        assert snapshot.phase == "generating"
        assert snapshot.agent_state == {"agent": {"turns": 1}, "interaction": {"asked": 1}}
    again = Snapshot.model_validate_json(snapshot.model_dump_json())
    rollout = await loop.run(loop.restore(again))
    assert isinstance(rollout, Rollout)
    whole = await run_uncut(loop_of(renderer), make_task(agent=f"{HERE}:Pupil"))
    assert essence(rollout) == essence(whole)


async def test_a_wait_that_is_ending_may_be_cut_again(renderer):
    Slow.begun, Slow.may_end = asyncio.Event(), asyncio.Event()
    loop = loop_of(renderer)
    state = loop.begin(make_task(agent=f"{HERE}:PupilSlow"))
    running = asyncio.ensure_future(loop.run(state))
    await asyncio.wait_for(Slow.begun.wait(), 10)
    while not running.done():
        await loop.cut(state, CutReason.INTERVAL if state.cut_reason is None else CutReason.LEAVE)
        await asyncio.sleep(0)
    (cut,) = running.result().progress.interruptions
    assert cut.reason == "interval"


@pytest.mark.parametrize(
    ("name", "says"), [("PupilCancelled", "was cancelled"), ("PupilSilent", "did not reply")]
)
async def test_a_partner_that_fails_fails_this_attempt(renderer, name, says):
    loop = loop_of(renderer)
    with pytest.raises(RolloutFailed, match=says) as failure:
        await loop.run(loop.begin(make_task(agent=f"{HERE}:{name}")))
    assert failure.value.kind == "data"
    assert not failure.value.final, "it may reply the next time"


async def test_what_a_partner_raises_passes_through(renderer):
    loop = loop_of(renderer)
    with pytest.raises(ValueError, match="no idea"):
        await loop.run(loop.begin(make_task(agent=f"{HERE}:PupilBroken")))


async def test_turn_limit_ends_a_conversation(renderer):
    rollout = await run_uncut(loop_of(renderer), make_task(agent=f"{HERE}:Pupil", max_turns=2))
    assert (rollout.status, rollout.finish_reason) == ("truncated", "max_turns")
    assert rollout.progress.messages[-1].content == "two"
