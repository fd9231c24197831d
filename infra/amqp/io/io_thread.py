"""The one thread that talks to the broker: its event loop, and the way into it."""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop
from pika.adapters.utils import io_services_utils

from infra.amqp.io import strange_headers
from infra.amqp.io.mailbox import Mailbox

logger = logging.getLogger(__name__)

T = TypeVar("T")

_RECV_BYTES = 64 * 1024
_CONSUME_BYTES = 1024 * 1024


def tune_pika() -> None:
    """Read 64 KiB at a time instead of 4: halves the cost of large messages.

    And survive any header.

    Its logger repeats, with stack traces, what we report in one line.
    """
    transport = getattr(io_services_utils, "_AsyncTransportBase", None)
    for name, value in (("_MAX_RECV_BYTES", _RECV_BYTES), ("_MAX_CONSUME_BYTES", _CONSUME_BYTES)):
        if transport is not None and hasattr(transport, name):
            setattr(transport, name, value)
    strange_headers.tolerate()
    logger = logging.getLogger("pika")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL)


class IoThread:
    """An event loop in a daemon thread.

    Args:
        name: Of the thread.
        after_batch: Runs in it after each batch of calls.
        on_died: Told in it when something that was spawned failed: nothing dies in silence.
        on_callback_failed: Told in it, with the reason, when a callback of the loop raised.
    """

    def __init__(
        self,
        name: str,
        *,
        after_batch: Callable[[], None],
        on_died: Callable[[BaseException], None],
        on_callback_failed: Callable[[str], None] = lambda reason: None,
    ) -> None:
        tune_pika()
        self.loop = uvloop.new_event_loop()
        self.loop.set_exception_handler(lambda _loop, context: self._raised(context))
        self._after_batch = after_batch
        self._on_callback_failed = on_callback_failed
        self._on_died = on_died
        self._batch_ends = False
        self.mailbox = Mailbox(self.loop, after=after_batch)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

    def _raised(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        logger.debug("in the I/O loop: %s", context.get("message"), exc_info=error)
        self._on_callback_failed(f"{type(error).__name__}: {error}")

    def end_batch_soon(self) -> None:
        """Call `after_batch` when this turn of the I/O loop is over, once. I/O thread only."""
        if not self._batch_ends:
            self._batch_ends = True
            self.loop.call_soon(self._end_batch)

    def _end_batch(self) -> None:
        self._batch_ends = False
        self._after_batch()

    def spawn(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine in the I/O loop, from any thread."""
        self.mailbox.post(self._spawn, coroutine)

    def _spawn(self, coroutine: Coroutine[Any, Any, object]) -> None:
        task = self.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_died(error)

    async def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the I/O loop, after all that was posted, and await its result."""
        self.mailbox.wake()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self.loop))

    async def stop(self) -> None:
        """Cancel what still runs, end the loop and join the thread."""
        await self.call(self._cancel())
        self.loop.call_soon_threadsafe(self.loop.stop)
        await asyncio.to_thread(self._thread.join)

    async def _cancel(self) -> None:
        rest = asyncio.all_tasks(self.loop) - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
