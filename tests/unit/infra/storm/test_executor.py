"""The schedule is carried out to its end, and no fault is forgotten on the way."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from infra.roles.errors import WarrenError
from infra.storm import executor as module
from infra.storm.executor import Executor
from infra.storm.schedule import Planned
from infra.storm.world import Outcome
from schemas.storm import FaultKind

CUT = Planned(at=0.0, kind=FaultKind.CUT, target="trainer", seed=1)
Do = Callable[[Any, Planned], Awaitable[Outcome | None]]


@pytest.fixture
def carried_out(monkeypatch: pytest.MonkeyPatch) -> Callable[[Do], Executor]:
    """An executor whose cuts do this instead."""

    def make(do: Do) -> Executor:
        monkeypatch.setattr(module, "INJECT", {FaultKind.CUT: do})
        return Executor(None, say=lambda text: None)  # type: ignore[arg-type]

    return make


async def test_what_was_done_and_seen_is_noted(carried_out) -> None:
    async def do(world: Any, fault: Planned) -> Outcome:
        return Outcome(survived=True, seconds=2.0, recovery_s=1.5)

    executor = carried_out(do)
    await executor.run([CUT, CUT])
    assert [(f.kind, f.target, f.survived) for f in executor.faults] == [
        ("cut", "trainer", True)
    ] * 2
    assert executor.faults[0].recovery_seconds == 1.5


async def test_what_found_nothing_to_hit_does_not_count(carried_out) -> None:
    async def do(world: Any, fault: Planned) -> Outcome | None:
        if fault.seed:
            raise WarrenError("the queue is not there")
        return None

    executor = carried_out(do)
    await executor.run([CUT])
    assert executor.faults == []


async def test_an_error_in_a_fault_is_not_swallowed_and_the_others_come_to_their_end(
    carried_out,
) -> None:
    async def do(world: Any, fault: Planned) -> Outcome:
        if fault is CUT:
            raise AssertionError("nobody thought of that")
        return Outcome(survived=True)

    executor = carried_out(do)
    with pytest.raises(AssertionError, match="nobody thought"):
        await executor.run([CUT, Planned(at=0.0, kind=FaultKind.CUT, target="reward-1", seed=1)])
    assert [fault.target for fault in executor.faults] == ["reward-1"]


async def test_what_comes_to_no_end_was_not_survived(carried_out, monkeypatch) -> None:
    monkeypatch.setattr(module, "_STRAGGLE_S", 0.05)
    cancelled = asyncio.Event()

    async def do(world: Any, fault: Planned) -> Outcome:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    executor = carried_out(do)
    await executor.run([CUT])
    assert cancelled.is_set()
    assert [(fault.survived, fault.detail) for fault in executor.faults] == [
        (False, "no end in 0 s")
    ]


async def test_a_storm_that_is_called_off_leaves_nothing_behind(carried_out) -> None:
    begun, undone = asyncio.Event(), asyncio.Event()

    async def do(world: Any, fault: Planned) -> Outcome:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            undone.set()
        raise AssertionError

    storm = asyncio.create_task(carried_out(do).run([CUT]))
    await begun.wait()
    storm.cancel()
    with pytest.raises(asyncio.CancelledError):
        await storm
    assert undone.is_set()
