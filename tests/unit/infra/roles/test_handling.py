"""Messages are handled side by side, and what was begun when the role is told to stop ends."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.roles.context import Standing
from infra.roles.handling import handle_each
from schemas.control import RunState, Wanted
from tests.unit.infra.roles.role_contexts import make_context


class Messages:
    """A broker with one queue, which is also the subscription to it."""

    def __init__(self) -> None:
        self.asked: tuple[str, int] | None = None
        self._queue: asyncio.Queue[Any] = asyncio.Queue()

    def subscribe(self, queue: str, *, prefetch: int) -> "Messages":
        self.asked = (queue, prefetch)
        return self

    def put(self, message: Any) -> None:
        self._queue.put_nowait(message)

    def close(self) -> None:
        self._queue.put_nowait(None)

    def __aiter__(self) -> "Messages":
        return self

    async def __anext__(self) -> Any:
        message = await self._queue.get()
        if message is None:
            raise StopAsyncIteration
        return message


async def test_all_at_a_time_and_those_that_were_begun_are_finished(tmp_path: Path) -> None:
    messages, going_on, done = Messages(), asyncio.Event(), []
    context = make_context(tmp_path, broker=messages)
    begun = asyncio.Semaphore(0)

    async def handle(message: Any) -> None:
        begun.release()
        await going_on.wait()
        done.append(message)

    role = asyncio.create_task(handle_each(context, "credits", handle, prefetch=8))
    for number in range(3):
        messages.put(number)
    async with asyncio.timeout(5):
        for _ in range(3):
            await begun.acquire()
        context.stop.set()
        await asyncio.sleep(0.01)
        assert not role.done()
        going_on.set()
        await role
    assert sorted(done) == [0, 1, 2]
    assert messages.asked == ("credits", 8)


async def test_one_that_raises_ends_the_role_with_its_error(tmp_path: Path) -> None:
    messages = Messages()

    async def handle(message: Any) -> None:
        raise LookupError(message)

    messages.put("what")
    async with asyncio.timeout(5):
        with pytest.raises(ExceptionGroup) as caught:
            context = make_context(tmp_path, broker=messages)
            await handle_each(context, "credits", handle, prefetch=1)
    assert [type(error) for error in caught.value.exceptions] == [LookupError]


async def test_a_queue_that_has_nothing_is_named_and_stops_nobody(tmp_path: Path) -> None:
    messages, handled = Messages(), asyncio.Event()
    context = make_context(tmp_path, broker=messages)

    async def handle(message: Any) -> None:
        handled.set()

    role = asyncio.create_task(handle_each(context, "rollouts", handle, prefetch=1))
    async with asyncio.timeout(10):
        for _ in range(2):
            while context.waits.current()[0] != "a message in 'rollouts'":
                await asyncio.sleep(0.002)
            named = set(context.waits._open)
            handled.clear()
            messages.put(1)
            await handled.wait()
            while named & set(context.waits._open):
                await asyncio.sleep(0.0005)
        await asyncio.sleep(2 * context.config.deadlines.stall)
        context.stop.set()
        await role
    assert context.waits.current() == ("", 0.0)


async def test_a_message_in_hand_is_no_idleness(tmp_path: Path) -> None:
    messages, done = Messages(), asyncio.Event()
    context = make_context(tmp_path, broker=messages)

    async def handle(message: Any) -> None:
        await done.wait()

    messages.put(1)
    role = asyncio.create_task(handle_each(context, "rollouts", handle, prefetch=1))
    for _ in range(20):
        await asyncio.sleep(0.002)
        assert context.waits.current()[0] == ""
    done.set()
    context.stop.set()
    async with asyncio.timeout(10):
        await role


async def test_while_the_run_is_paused_or_drained_nothing_is_taken(tmp_path: Path) -> None:
    messages, done, going_on = Messages(), [], asyncio.Event()
    context = make_context(tmp_path, broker=messages)
    context.set_run_id("a")
    context.hear_run_state(RunState(run_id="a", number=1, wanted=Wanted.PAUSED))

    async def handle(message: Any) -> None:
        await going_on.wait()
        done.append(message)

    async def until(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                await asyncio.sleep(0.002)

    def stands(wanted: Wanted) -> Standing:
        assert context.stands is not None
        return context.stands(wanted)

    role = asyncio.create_task(handle_each(context, "credits", handle, prefetch=8))
    await until(lambda: context.waits.current()[0] == "the operator to let the run go on")
    assert messages.asked is None
    assert stands(Wanted.PAUSED).reached and not stands(Wanted.RUNNING).reached
    messages.put(1)
    context.hear_run_state(RunState(run_id="a", number=2))
    await until(
        lambda: messages.asked is not None and stands(Wanted.DRAINING).detail[-9:] == "1 in hand"
    )
    context.hear_run_state(RunState(run_id="a", number=3, wanted=Wanted.DRAINING))
    await until(lambda: stands(Wanted.PAUSED).reached)
    assert not stands(Wanted.DRAINING).reached
    going_on.set()
    await until(lambda: stands(Wanted.DRAINING).reached)
    assert done == [1]
    context.stop.set()
    async with asyncio.timeout(5):
        await role
