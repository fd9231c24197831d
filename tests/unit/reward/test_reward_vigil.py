"""Each wait of the reward role has a name."""

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager

import pytest

from consumers.reward import vigil
from infra.observe.waits import Waits
from infra.roles.errors import DeadlinePassed


class There:
    """A broker that is there or not."""

    connected = True


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vigil, "_PERIOD_S", 0.005)


@asynccontextmanager
async def kept(*, deadline_s=60.0, on_deadline="warn"):
    waits = Waits(warn_after_s=0.01, on_deadline=on_deadline)
    there = There()
    watch = vigil.Vigil(waits, connected=lambda: there.connected, deadline_s=deadline_s)
    keeping = asyncio.create_task(watch.keep())
    try:
        yield watch, waits, there, keeping
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not reached():
            await asyncio.sleep(0.002)


async def test_what_is_missing_is_named_and_nothing_else():
    async with kept() as (watch, waits, there, _):
        await until(lambda: waits.current()[0] == "rollouts: the queue is empty")
        watch.num_busy = 2
        await until(lambda: waits.current() == ("", 0.0))
        with watch.confirm(), watch.confirm():
            await until(lambda: waits.current()[0] == "the broker to confirm 2 messages")
            there.connected = False
            await until(lambda: waits.current()[0] == "the broker to come back")
            there.connected = True
        await until(lambda: waits.current() == ("", 0.0))
        watch.num_busy = 0
        watch.at_rest = True
        await asyncio.sleep(0.03)
        assert waits.current() == ("", 0.0), "a paused run lacks nothing"


async def test_past_its_deadline_the_role_stops_when_told_so():
    async with kept(deadline_s=0.02, on_deadline="stop") as (_, _, there, keeping):
        there.connected = False
        await until(keeping.done)
        with pytest.raises(DeadlinePassed, match="the broker to come back") as passed:
            keeping.result()
        assert passed.value.exit_code == 5
