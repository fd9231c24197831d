"""The calls of one turn while they run, and what becomes of them at a cut."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from consumers.rollout.tools.tool import Tool
from schemas.chat import ToolCall
from schemas.work import ToolResult

Perform = Callable[[ToolCall, Callable[[], None]], Awaitable[ToolResult]]
"""Runs one call; the callback says that the function itself has begun."""


class ToolRun:
    """Concurrent calls; `results` fills as they finish."""

    def __init__(self, calls: Mapping[str, tuple[ToolCall, Tool | None]], perform: Perform) -> None:
        self.results: dict[str, ToolResult] = {}
        self._calls = calls
        self._begun: set[str] = set()
        self._tasks = {
            call_id: asyncio.ensure_future(self._one(call, perform))
            for call_id, (call, _) in calls.items()
        }

    async def wait(self) -> None:
        """Until every call has a result. Cancelling leaves the calls running."""
        if self._tasks:
            await asyncio.wait(self._tasks.values())
        for task in self._tasks.values():
            if not task.cancelled():
                task.result()

    async def settle(self) -> None:
        """Abandon what may run again elsewhere, wait for the rest up to its limits."""
        for call_id, task in self._tasks.items():
            entry = self._calls[call_id][1]
            if entry is None or entry.repeatable or call_id not in self._begun:
                task.cancel()
        await self.wait()

    def abandon(self) -> None:
        """Cancel everything that still runs."""
        for task in self._tasks.values():
            task.cancel()

    async def _one(self, call: ToolCall, perform: Perform) -> None:
        self.results[call.id] = await perform(call, lambda: self._begun.add(call.id))
