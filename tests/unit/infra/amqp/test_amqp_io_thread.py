"""What runs in the I/O thread never dies in silence."""

import asyncio

from infra.amqp.io.io_thread import IoThread


async def test_a_spawned_task_that_fails_is_told_of() -> None:
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    errors: list[BaseException] = []

    def died(error: BaseException) -> None:
        errors.append(error)
        loop.call_soon_threadsafe(told.set)

    async def fails() -> None:
        raise KeyError("unforeseen")

    async def lasts() -> None:
        await asyncio.Event().wait()

    io = IoThread("test", after_batch=lambda: None, on_died=died)
    io.spawn(lasts())
    io.spawn(fails())
    async with asyncio.timeout(5):
        await told.wait()
    await io.stop()
    assert [type(error) for error in errors] == [KeyError]
