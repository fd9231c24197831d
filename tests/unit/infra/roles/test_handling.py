"""Messages are handled side by side, and what was begun when the role is told to stop ends."""

import asyncio
from typing import Any

import pytest

from infra.roles.handling import handle_each


class Messages:
    """A subscription and the context around it."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.broker = self
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


async def test_all_at_a_time_and_those_that_were_begun_are_finished() -> None:
    messages, going_on, done = Messages(), asyncio.Event(), []
    begun = asyncio.Semaphore(0)

    async def handle(message: Any) -> None:
        begun.release()
        await going_on.wait()
        done.append(message)

    role = asyncio.create_task(handle_each(messages, "credits", handle, prefetch=8))  # type: ignore[arg-type]
    for number in range(3):
        messages.put(number)
    async with asyncio.timeout(5):
        for _ in range(3):
            await begun.acquire()
        messages.stop.set()
        await asyncio.sleep(0.01)
        assert not role.done()
        going_on.set()
        await role
    assert sorted(done) == [0, 1, 2]
    assert messages.asked == ("credits", 8)


async def test_one_that_raises_ends_the_role_with_its_error() -> None:
    messages = Messages()

    async def handle(message: Any) -> None:
        raise LookupError(message)

    messages.put("what")
    async with asyncio.timeout(5):
        with pytest.raises(ExceptionGroup) as caught:
            await handle_each(messages, "credits", handle, prefetch=1)  # type: ignore[arg-type]
    assert [type(error) for error in caught.value.exceptions] == [LookupError]
