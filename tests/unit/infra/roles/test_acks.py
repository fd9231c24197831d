"""How a role answers commands: heard, done, and once more when it is asked once more."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra.amqp.codec import decode
from infra.roles.acks import answer_commands, say_done_with_stop
from infra.roles.context import RoleContext, Standing
from schemas.control import Command, CommandAck, RunState, Wanted
from tests.unit.infra.roles.role_contexts import make_context


class Emitted:
    """A broker that keeps what is emitted."""

    def __init__(self) -> None:
        self.acks: list[CommandAck] = []

    async def emit(self, message: Any) -> None:
        self.acks.append(decode(message.envelope, message.body, CommandAck))

    async def until(self, count: int) -> CommandAck:
        async with asyncio.timeout(5):
            while len(self.acks) < count:
                await asyncio.sleep(0.002)
        return self.acks[-1]


def state(number: int, wanted: Wanted) -> RunState:
    return RunState(run_id="a", number=number, wanted=wanted)


@pytest.fixture
def broker() -> Emitted:
    return Emitted()


@pytest.fixture
def context(tmp_path: Path, broker: Emitted) -> RoleContext:
    context = make_context(tmp_path, broker=broker)
    context.set_run_id("a")
    return context


async def test_heard_then_done_then_answered_again(context: RoleContext, broker: Emitted) -> None:
    answering = asyncio.create_task(answer_commands(context))
    left = SimpleNamespace(num=2)
    context.settling(lambda wanted: Standing(not left.num, f"{wanted} {left.num} left"))
    pause = Command(run_id="a", verb="pause", number=7, by="ana")
    context.hear_command(pause)
    first = await broker.until(1)
    assert (first.done, first.verb, first.number, first.by) == (False, "pause", 7, "ana")
    assert (first.role, first.worker, first.run_id) == ("rollout", "rollout-1", "a")
    context.hear_run_state(state(1, Wanted.RUNNING))
    context.hear_command(pause)
    assert (await broker.until(2)).detail == "the trainer wants the run running"
    context.hear_run_state(state(2, Wanted.PAUSED))
    context.hear_command(pause)
    assert (await broker.until(3)).detail == "paused 2 left"
    left.num = 0
    assert (await broker.until(4)).done
    context.hear_command(pause)
    assert (await broker.until(5)).done
    answering.cancel()


async def test_a_newer_command_takes_the_place_of_one_that_is_not_done(
    context: RoleContext, broker: Emitted
) -> None:
    answering = asyncio.create_task(answer_commands(context))
    context.hear_run_state(state(1, Wanted.RUNNING))
    context.hear_command(Command(run_id="a", verb="drain", number=1, by="ana"))
    await broker.until(1)
    context.hear_command(Command(run_id="a", verb="resume", number=9, by="bob"))
    ack = await broker.until(2)
    assert (ack.verb, ack.by, ack.done) == ("resume", "bob", True)
    answering.cancel()


async def test_stop_is_done_with_the_last_word(context: RoleContext, broker: Emitted) -> None:
    answering = asyncio.create_task(answer_commands(context))
    await say_done_with_stop(context)
    context.hear_command(Command(run_id="a", verb="stop", number=1, by="ana"))
    assert not (await broker.until(1)).done
    assert context.stop.is_set()
    answering.cancel()
    await say_done_with_stop(context)
    assert (await broker.until(2)).done


async def test_a_command_heard_before_anybody_obeys_is_obeyed_then(context: RoleContext) -> None:
    context.hear_command(Command(run_id="a", verb="pause", number=1, by="ana"))
    obeyed: list[Command] = []
    context.on_command(obeyed.append)
    context.hear_command(Command(run_id="a", verb="pause", number=1, by="ana"))
    assert [command.verb for command in obeyed] == ["pause"]
