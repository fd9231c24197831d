"""The tools of one worker: calls in, texts for the model out, within limits."""

import asyncio
import contextlib
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any, Self

from consumers.rollout.tools.errors import ToolError
from consumers.rollout.tools.run import ToolRun
from consumers.rollout.tools.running import RunningCalls
from consumers.rollout.tools.threads import ToolThreads
from consumers.rollout.tools.tool import Tool, tool
from infra.roles.errors import ConfigError
from infra.roles.registry import resolve
from schemas.base import encodable
from schemas.chat import ToolCall, ToolSpec
from schemas.work import ToolResult

logger = logging.getLogger(__name__)


class ToolBox:
    """Runs the calls of the policy; whatever goes wrong becomes text for the model.

    Args:
        tools: By the name under which tasks ask for them.
        timeout_s: Limit of one call of a tool that names none itself.
        max_result_chars: Longer results are cut, with a mark that says so; None leaves them.
        max_calls: Calls of one turn that are run; the others are told so.
        max_threads: Synchronous tools running at a time, those that hang included.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        tools: dict[str, Tool],
        *,
        timeout_s: float = 30.0,
        max_result_chars: int | None = None,
        max_calls: int = 32,
        max_threads: int = 64,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tools = tools
        self._timeout_s = timeout_s
        self._max_result_chars = max_result_chars
        self._max_calls = max_calls
        self._threads = ToolThreads(max_threads)
        self._clock = clock
        self.running = RunningCalls(clock)
        self._abandoned: set[asyncio.Task[Any]] = set()
        self._limits = {
            name: asyncio.Semaphore(entry.max_concurrency)
            for name, entry in tools.items()
            if entry.max_concurrency is not None
        }
        counts = Counter(entry.name for entry in tools.values())
        if doubles := [name for name, count in counts.items() if count > 1]:
            raise ConfigError(f"two tools are called {', '.join(doubles)}")

    @classmethod
    def load(cls, names: Sequence[str], **limits: Any) -> Self:
        """Find tools by registered name or import path; a plain function becomes a tool.

        Raises:
            ConfigError: There is no such tool, or its signature cannot be shown to a model.
        """
        found = {name: resolve("tool", name) for name in names}
        return cls(
            {
                name: entry if isinstance(entry, Tool) else tool(entry)
                for name, entry in found.items()
            },
            **limits,
        )

    def specs(self, names: Collection[str]) -> tuple[ToolSpec, ...]:
        """What the model is shown, in the order asked.

        Raises:
            ConfigError: This worker has no such tool.
        """
        if missing := [name for name in names if name not in self._tools]:
            raise ConfigError(
                f"this worker has no tool {', '.join(missing)}",
                hint=f"it has {', '.join(self._tools) or 'none'}; see [rollout] tools",
            )
        return tuple(self._tools[name].spec for name in names)

    def pins(self, calls: Sequence[ToolCall], names: Collection[str]) -> bool:
        """Whether any of the calls leaves something behind that no snapshot can express."""
        allowed = self._allowed(names)
        entries = [allowed.get(call.function.name) for call in calls]
        return any(entry.pins for entry in entries if entry is not None)

    def limit_s(self, calls: Sequence[ToolCall], names: Collection[str]) -> float:
        """Longest that one of the calls may take once it runs."""
        allowed = self._allowed(names)
        entries = [allowed.get(call.function.name) for call in calls]
        return max((self._limit_of(entry) for entry in entries if entry is not None), default=0.0)

    def start(self, calls: Sequence[ToolCall], names: Collection[str]) -> ToolRun:
        """Run calls concurrently, all of them; only the named tools may be called."""
        allowed = self._allowed(names)
        return ToolRun(
            {call.id: (call, allowed.get(call.function.name)) for call in calls},
            lambda call, mark_started: self._call(call, allowed, mark_started),
        )

    def _allowed(self, names: Collection[str]) -> dict[str, Tool]:
        return {self._tools[name].name: self._tools[name] for name in names if name in self._tools}

    async def _call(
        self, call: ToolCall, allowed: dict[str, Tool], mark_started: Callable[[], None]
    ) -> ToolResult:
        name = call.function.name
        entry = allowed.get(name)
        if entry is None:
            known = ", ".join(sorted(allowed)) or "none"
            return _result(call, f"there is no tool {name[:100]!r}. Available tools: {known}")
        if int(call.id.rpartition(":")[2]) >= self._max_calls:
            return _result(call, f"not run: at most {self._max_calls} calls in one turn are run")
        async with self._limits.get(_key(self._tools, entry), contextlib.nullcontext()):
            started = self._clock()
            try:
                bound = entry.bind(call.function.arguments, call.id)
                mark_started()
                with self.running.noted(call.id, entry.name, self._limit_of(entry)):
                    value = await self._within_limit(entry, bound)
            except ToolError as error:
                return _result(call, str(error), self._clock() - started)
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                return _result(call, f"{name} failed: {error!r}", self._clock() - started)
            except Exception as error:  # user tool: its failure is the model's to know
                logger.info("tool %s failed in call %s: %r", name, call.id, error)
                text = f"{name} failed: {type(error).__name__}: {error}"
                return _result(call, text, self._clock() - started)
        return ToolResult(
            call=call,
            content=self._shorten(_as_text(value)),
            ok=True,
            duration_s=self._clock() - started,
        )

    async def _within_limit(self, entry: Tool, bound: dict[str, Any]) -> Any:
        """The function's value; one that outlives its limit is abandoned, not awaited.

        Raises:
            ToolError: The limit passed.
        """
        limit = self._limit_of(entry)
        if entry.is_async:
            running = asyncio.ensure_future(entry.function(**bound))
        else:
            running = asyncio.ensure_future(self._threads.run(lambda: entry.function(**bound)))
        try:
            await asyncio.wait({running}, timeout=limit)
            if not running.done():
                self.running.num_timeouts += 1
                raise ToolError(f"{entry.name} did not finish within {limit:g} s")
            return running.result()
        finally:
            self._abandoned.add(running)
            running.add_done_callback(self._forget)
            running.cancel()

    def _limit_of(self, entry: Tool) -> float:
        return entry.timeout_s if entry.timeout_s is not None else self._timeout_s

    def _forget(self, running: "asyncio.Task[Any]") -> None:
        self._abandoned.discard(running)
        if not running.cancelled():
            running.exception()

    def _shorten(self, text: str) -> str:
        limit = self._max_result_chars
        if limit is None or len(text) <= limit:
            return text
        return f"{text[:limit]}\n[{len(text) - limit} of {len(text)} characters left out]"


def _key(tools: dict[str, Tool], entry: Tool) -> str:
    return next(name for name, known in tools.items() if known is entry)


def _result(call: ToolCall, error: str, duration_s: float = 0.0) -> ToolResult:
    return ToolResult(
        call=call, content=encodable(f"Error: {error}")[:2000], ok=False, duration_s=duration_s
    )


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return encodable(value)
    try:
        return encodable(json.dumps(value, ensure_ascii=False))
    except (TypeError, ValueError, RecursionError):
        return encodable(str(value))
