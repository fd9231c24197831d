"""All requests that are at the server, from the first byte to the last event.

gate open:  send -> answer begins -> events -> last event
                        +- interrupt: abort, once it has begun -> last event, within a deadline
gate shut:  new requests wait, interrupts are kept; what was sent has begun and every abort has
            arrived before the server is paused, because a paused server loses both
"""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx

from consumers.rollout.engines.base import EngineFailed, Finish, GenerateRequest, TokenChunk
from consumers.rollout.engines.sglang.answer import Dropped, Reading, Reason
from consumers.rollout.engines.sglang.client import Client, Unreachable
from consumers.rollout.engines.sglang.facts import Facts
from consumers.rollout.engines.sglang.requests import Leg, is_truncated, next_leg, request_body

logger = logging.getLogger(__name__)

_BEGIN_S = 30.0
"""From sending a request to the first line of its answer, which needs no token."""
_ABORT_S = 10.0
"""From an abort to the last event of the stream."""
_ALIVE_S = 5.0
_DROPPED_PAUSE_S = 0.5
"""Before a request that the server dropped is given back, so that nobody asks in a tight loop."""


class _Turn:
    """A turn that a consumer holds."""

    def __init__(self) -> None:
        self.rid = ""
        self.begun = asyncio.Event()
        self.interrupted = False
        self.told = False
        self._deadline: float | None = None
        self._limit: asyncio.Timeout | None = None

    def hurry(self, within_s: float) -> None:
        """The next event must come within that time, or is not waited for."""
        self._deadline = asyncio.get_running_loop().time() + within_s
        if self._limit is not None:
            self._limit.reschedule(self._deadline)

    @asynccontextmanager
    async def patience(self) -> AsyncIterator[None]:
        """As long as one waits for an event; raises TimeoutError."""
        async with asyncio.timeout_at(self._deadline) as self._limit:
            try:
                yield
            finally:
                self._limit = None


class Streams:
    """Requests, interrupts and the gate.

    Args:
        client: Of the server.
        facts: Of the server.
        vocab_size: Of the model.
        max_model_len: Context length in tokens.
        version: What is served now.
        check_alive: Raises `EngineFailed` when the server cannot answer any more.
    """

    def __init__(
        self,
        client: Client,
        facts: Facts,
        *,
        vocab_size: int,
        max_model_len: int,
        version: Callable[[], int],
        check_alive: Callable[[], None],
    ) -> None:
        self._client = client
        self._facts = facts
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._version = version
        self._check_alive = check_alive
        self.known: set[int] = set()
        """Versions that were ever served."""
        self._turns: dict[str, _Turn] = {}
        self._gate = asyncio.Event()
        self._gate.set()
        self._sending: set[asyncio.Future[None]] = set()
        self._aborts: set[asyncio.Task[None]] = set()
        self._closed = False

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk | Finish, None]:
        """Sample a turn that was checked; see `Engine.generate`."""
        if request.request_id in self._turns:
            raise ValueError(f"request {request.request_id} is running already")
        turn = self._turns[request.request_id] = _Turn()
        token_ids = list(request.token_ids)
        reason: Reason = "length"
        num_cached = 0
        try:
            while leg := self._next_leg(request, token_ids):
                async with contextlib.aclosing(self._leg(request, leg, token_ids, turn)) as items:
                    async for item in items:
                        if isinstance(item, TokenChunk):
                            token_ids += item.token_ids
                            yield item
                        else:
                            reason = item.reason
                            num_cached = num_cached or item.num_cached_tokens
                if reason != "interrupted":
                    stopped = token_ids[-1] in request.stop_token_ids
                    reason = "stop" if stopped else "length"
                if reason != "length":
                    break
            if self._next_leg(request, token_ids) is None and reason == "interrupted":
                reason = "length"
            yield Finish(reason=reason, num_cached_tokens=num_cached)
        finally:
            del self._turns[request.request_id]

    async def interrupt(self, request_ids: Collection[str] | None) -> None:
        """Abort turns at the server, now or when the gate opens."""
        for name, turn in self._turns.items():
            turn.interrupted |= request_ids is None or name in request_ids
        await self._pass_on()

    @asynccontextmanager
    async def stopped(self) -> AsyncIterator[None]:
        """The gate is shut, and nothing is on its way to the server.

        Raises:
            EngineFailed: The server does not begin to answer what it was sent.
        """
        self._gate.clear()
        try:
            if self._sending:
                _, late = await asyncio.wait(self._sending, timeout=_BEGIN_S)
                if late:
                    raise EngineFailed(f"SGLang did not take {len(late)} calls in {_BEGIN_S:g} s")
            yield
        finally:
            self._gate.set()
        await self._pass_on()

    def close(self) -> None:
        """End every stream as interrupted; nothing more is sent."""
        self._closed = True
        self.wake()

    def wake(self) -> None:
        """Let every stream see that the server is of no use any more."""
        self._gate.set()
        for turn in self._turns.values():
            turn.hurry(0)
        for task in self._aborts:
            task.cancel()

    def __len__(self) -> int:
        return len(self._turns)

    def _next_leg(self, request: GenerateRequest, token_ids: list[int]) -> Leg | None:
        num_sampled = len(token_ids) - len(request.token_ids)
        return next_leg(request, num_sampled, max_model_len=self._max_model_len)

    async def _leg(
        self, request: GenerateRequest, leg: Leg, token_ids: list[int], turn: _Turn
    ) -> AsyncGenerator[TokenChunk | Finish, None]:
        while not self._gate.is_set():
            await self._gate.wait()
        if turn.interrupted or self._closed:
            yield Finish(reason="interrupted")
            return
        self._check_alive()
        turn.rid, turn.told = uuid.uuid4().hex, False
        turn.begun.clear()
        body = request_body(
            request,
            leg,
            token_ids,
            rid=turn.rid,
            facts=self._facts,
            vocab_size=self._vocab_size,
        )
        reading = Reading(
            version=self._version(),
            known=self.known,
            vocab_size=self._vocab_size,
            truncated=is_truncated(request, self._vocab_size),
        )
        reason: Reason | None = None
        response: httpx.Response | None = None
        try:
            response = await self._begun(body, turn)
            events = self._client.events(response)
            while reason is None:
                async with turn.patience():
                    event = await anext(events, None)
                if event is None:
                    raise Unreachable("the stream ended without a last event")
                chunks, reason = reading.take(event)
                for chunk in chunks:
                    yield chunk
        except TimeoutError:
            if not self._closed:
                self._check_alive()
                logger.warning("SGLang did not end a request within %g s of an abort", _ABORT_S)
            yield Finish(reason="interrupted")
        except (Unreachable, Dropped) as error:
            await self._given_up(error)
            yield Finish(reason="interrupted")
        else:
            yield Finish(reason=reason, num_cached_tokens=reading.num_cached_tokens)
        finally:
            rid, turn.rid = turn.rid, ""
            if response is not None:
                await response.aclose()
            if reason is None and not self._closed:
                self._abort_later(rid)

    async def _begun(self, body: dict[str, Any], turn: _Turn) -> httpx.Response:
        """Send a request; it has reached the server when this returns."""
        try:
            with self._in_flight():
                return await self._client.begin(body, timeout_s=_BEGIN_S)
        finally:
            turn.begun.set()

    async def _given_up(self, error: Exception) -> None:
        """A stream broke: what came of the turn is kept, if the server lives.

        Raises:
            EngineFailed: It does not.
        """
        if self._closed:
            return
        self._check_alive()
        try:
            answer = await self._client.get("/model_info", timeout_s=_ALIVE_S)
        except Unreachable as gone:
            raise EngineFailed(f"SGLang is lost: {error}") from gone
        if not (answer.ok and answer.json()):
            raise EngineFailed(
                f"SGLang is lost: {error}; asked what it serves, it answers {answer.status}: "
                f"{answer.text[:200]}"
            )
        logger.warning("SGLang gave a request up, which goes on from there: %s", error)
        await asyncio.sleep(_DROPPED_PAUSE_S)

    async def _pass_on(self) -> None:
        """Tell the server of interrupts that it has not heard of."""
        if self._gate.is_set():
            turns = [t for t in self._turns.values() if t.interrupted and t.rid and not t.told]
            await asyncio.gather(*map(self._cut, turns))

    async def _cut(self, turn: _Turn) -> None:
        turn.told = True
        rid = turn.rid
        await turn.begun.wait()  # bounded by the time that beginning has
        if turn.rid != rid:
            return
        if not self._gate.is_set():
            turn.told = False
            return
        turn.hurry(_ABORT_S)
        await self._abort(rid)

    async def _abort(self, rid: str) -> None:
        with self._in_flight():
            try:
                await self._client.control("/abort_request", {"rid": rid}, timeout_s=_ABORT_S)
            except Unreachable as error:
                self._check_alive()
                raise EngineFailed(f"SGLang is lost: {error}") from error

    def _abort_later(self, rid: str) -> None:
        """Free what a consumer left behind; the server would by itself, some seconds later."""

        async def abort() -> None:
            await self._gate.wait()
            with contextlib.suppress(EngineFailed):
                await self._abort(rid)

        task = asyncio.create_task(abort(), name=f"abort {rid}")
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    @contextmanager
    def _in_flight(self) -> Iterator[None]:
        done = asyncio.get_running_loop().create_future()
        self._sending.add(done)
        try:
            yield
        finally:
            self._sending.discard(done)
            done.set_result(None)
