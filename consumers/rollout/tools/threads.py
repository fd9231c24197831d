"""Threads for synchronous tools: bounded in number, and no obstacle to leaving."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any


class ToolThreads:
    """Runs functions in daemon threads; one that hangs keeps its place until it returns.

    So the number of threads stays bounded whatever the tools do, and the process can exit while
    some still hang.
    """

    def __init__(self, limit: int = 64) -> None:
        self._free = asyncio.Semaphore(limit)

    async def run(self, function: Callable[[], Any]) -> Any:
        """The function's result; cancelling abandons the thread.

        Raises:
            Exception: Whatever the function raised. `SystemExit` and the like become
                `RuntimeError`.
        """
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def settle(result: Any, error: Exception | None) -> None:
            self._free.release()
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        def work() -> None:
            result: Any = None
            error: Exception | None = None
            try:
                result = function()
            except BaseException as raised:  # user tool: nothing may end this thread in silence
                error = (
                    raised
                    if isinstance(raised, Exception) and not isinstance(raised, StopIteration)
                    else RuntimeError(repr(raised))
                )
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, result, error)

        try:
            threading.Thread(target=work, name="tool", daemon=True).start()
        except RuntimeError:  # the system gives no more threads
            self._free.release()
            raise
        return await future
