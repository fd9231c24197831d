"""Plays a rollout on a fleet of workers, and cuts it where it is told to.

task -> worker -> cut -> snapshot, encoded, decoded -> any worker -> ... -> rollout
"""

import asyncio
import dataclasses
import random
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Collection, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from consumers.rollout.agents.loop import AgentLoop
from consumers.rollout.agents.state import CutReason, RolloutState
from consumers.rollout.engines.base import Engine, Finish, GenerateRequest, TokenChunk
from infra.amqp.codec import decode, encode
from infra.text.renderer import Renderer
from schemas.work import Rollout, RolloutTask, Snapshot
from tests.factories.agent_runs import admit
from tests.factories.cuts.conversations import EveryTurnCalls, Partner, toolbox

M = TypeVar("M", Rollout, Snapshot, RolloutTask)


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Where a rollout is to be cut; where that has passed already, at the next occasion.

    Attributes:
        length: Of the sequence.
        call: While this call of the turn that ends there runs, or while a partner is asked;
            None cuts in the engine.
        live: By interrupting the running request, which goes on for some tokens; else exactly.
        reason: Why; a sync cuts only what is in the engine.
    """

    length: int
    call: int | None = None
    live: bool = False
    reason: CutReason = CutReason.LEAVE


@dataclass
class Watch:
    """One rollout on one worker."""

    loop: AgentLoop
    state: RolloutState
    pending: deque[Cut]
    runs: Counter[str]
    """Tool calls that were run, by id."""
    cutting: list[asyncio.Future[None]] = field(default_factory=list)

    def fire(self) -> Awaitable[None]:
        """Cut; it is over with this one, whether it takes effect or not."""
        return self.loop.cut(self.state, self.pending.popleft().reason)


WATCH: ContextVar[Watch] = ContextVar("watch")


class CuttingEngine:
    """A real engine whose requests are cut as the rollout's watch says.

    Attributes:
        requests: Seeds, lengths before and numbers of tokens that came, of every request.
    """

    def __init__(self, inner: Engine) -> None:
        self.inner = inner
        self.requests: list[tuple[GenerateRequest, list[int]]] = []

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk | Finish]:
        watch, came = WATCH.get(), list[int]()
        self.requests.append((request, came))
        cut = watch.pending[0] if watch.pending else None
        if cut is not None and cut.call is not None:
            late = cut.length < len(request.token_ids)
            cut = dataclasses.replace(cut, call=None, live=False) if late else None
        stream = self._cut_exactly if cut and not cut.live else self._cut_live
        async for item in stream(request, watch, cut):
            if isinstance(item, TokenChunk):
                came += item.token_ids
            yield item

    async def _cut_exactly(
        self, request: GenerateRequest, watch: Watch, cut: Cut
    ) -> AsyncIterator[TokenChunk | Finish]:
        left = cut.length - len(request.token_ids)
        if left > 0:
            limited = dataclasses.replace(request, max_tokens=min(left, request.max_tokens))
            async for item in self.inner.generate(limited):
                if isinstance(item, TokenChunk):
                    left -= len(item.token_ids)
                    yield item
                elif left > 0:  # the turn ends before the place
                    yield item
                    return
        await watch.fire()
        yield Finish(reason="interrupted")

    async def _cut_live(
        self, request: GenerateRequest, watch: Watch, cut: Cut | None
    ) -> AsyncIterator[TokenChunk | Finish]:
        length = len(request.token_ids)
        async for item in self.inner.generate(request):
            if isinstance(item, TokenChunk):
                length += len(item.token_ids)
                if cut is not None and length >= cut.length:
                    cut = None
                    watch.cutting.append(asyncio.ensure_future(watch.fire()))
            yield item

    async def interrupt(self, request_ids: Collection[str] | None = None) -> None:
        await self.inner.interrupt(request_ids)


async def _call_started(call_id: str) -> None:
    watch = WATCH.get()
    watch.runs[call_id] += 1
    position = int(call_id.rpartition(":")[2])
    await _answered_soon(watch, position, len(watch.state.calls))


async def _asked(_rollout_id: str) -> None:
    await _answered_soon(WATCH.get(), 0, 1)


async def _answered_soon(watch: Watch, position: int, num_calls: int) -> None:
    cut = watch.pending[0] if watch.pending else None
    if cut is None or cut.call is None or cut.length > len(watch.state.token_ids):
        return
    if position >= min(cut.call, num_calls - 1):
        await watch.fire()


class Worker:
    """An agent loop on an engine; several may share one."""

    def __init__(self, name: str, engine: Engine, folder: Path) -> None:
        Partner.hook = staticmethod(_asked)
        self.name = name
        self.engine = CuttingEngine(engine)
        self.loop = AgentLoop(
            engine=self.engine,
            renderer=Renderer.load(folder),
            parser=EveryTurnCalls(),
            tools=toolbox(_call_started),
            worker=name,
            admit=admit,
        )


@dataclass(kw_only=True)
class Played:
    """A finished rollout and the way there."""

    rollout: Rollout
    handed: list[Snapshot | RolloutTask] = field(default_factory=list)
    """As they left each worker but the last."""
    workers: list[str] = field(default_factory=list)
    runs: Counter[str] = field(default_factory=Counter)


def travelled(model: M) -> M:
    """What arrives of a message."""
    envelope, body = encode(model, app_id="test/0", correlation_id="", headers={})
    return decode(envelope, body, type(model))


async def play(
    task: RolloutTask, workers: Sequence[Worker], cuts: Iterable[Cut], drawn: random.Random
) -> Played:
    """Work on a task until it ends, cut in the given order; random workers take it up."""
    pending, runs = deque(cuts), Counter[str]()
    handed: list[Snapshot | RolloutTask] = []
    names: list[str] = []
    work: Snapshot | RolloutTask = travelled(task)
    while True:
        worker = drawn.choice(workers)
        names.append(worker.name)
        loop = worker.loop
        state = loop.restore(work) if isinstance(work, Snapshot) else loop.begin(work)
        watch = Watch(loop, state, pending, runs)
        WATCH.set(watch)
        result = await loop.run(state)
        await asyncio.gather(*watch.cutting)
        if isinstance(result, Rollout):
            return Played(rollout=travelled(result), handed=handed, workers=names, runs=runs)
        work = travelled(result)
        handed.append(work)


async def play_all(
    tasks: Sequence[RolloutTask],
    workers: Sequence[Worker],
    cuts: Sequence[Sequence[Cut]],
    *,
    at_once: int,
) -> list[Played]:
    """Many conversations beside each other; each has a seed of its own for who takes it up."""
    places = asyncio.Semaphore(at_once)

    async def one(task: RolloutTask, wanted: Sequence[Cut]) -> Played:
        async with places:
            drawn = random.Random(f"workers of {task.rollout_id}")
            return await play(task, workers, wanted, drawn)

    return await asyncio.gather(*(one(*pair) for pair in zip(tasks, cuts, strict=True)))
