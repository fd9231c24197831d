"""Waiting lines, their pauses, and deadlines: on a clock of the test's own."""

import asyncio
from typing import Any

import pytest

from infra.observe import waits as module
from infra.observe.waits import Waits
from infra.roles.errors import DeadlinePassed


class Clock:
    """Sleeping advances it; `freeze` is added to the next sleep, as SIGSTOP would."""

    def __init__(self) -> None:
        self.now, self.freeze = 0.0, 0.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds + self.freeze
        self.freeze = 0.0


async def looks(clock: Clock, deadline_s: float | None, until: float) -> list[tuple[float, bool]]:
    seen = []
    async for waited, passed in module._looks(10.0, deadline_s):
        if clock.now > until:
            return seen
        seen.append((waited, passed))
    return seen


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module.asyncio, "sleep", clock.sleep)
    return clock


async def test_lines_become_rarer(clock: Clock) -> None:
    lines = await looks(clock, None, until=1500)
    assert [waited for waited, _ in lines] == [10, 30, 70, 150, 310, 610, 910, 1210]
    assert not any(passed for _, passed in lines)


async def test_a_deadline_passes_once_and_on_time(clock: Clock) -> None:
    lines = await looks(clock, 45.0, until=200)
    assert lines == [(10, False), (30, False), (45, True), (70, False), (150, False)]


async def test_a_deadline_before_the_first_line(clock: Clock) -> None:
    assert (await looks(clock, 3.0, until=20))[0] == (3, True)


async def test_a_frozen_process_is_not_charged_for_its_sleep(clock: Clock) -> None:
    clock.freeze = 10_000.0
    async for waited, passed in module._looks(10.0, 60.0):
        assert (waited, passed) == (pytest.approx(20, abs=0.1), False)
        break


async def test_names_the_oldest_and_forgets_what_came() -> None:
    waits = Waits()
    assert waits.current() == ("", 0.0)
    async with waits("a"):
        async with waits(lambda: "b"):
            assert waits.current()[0] == "a"
        assert waits.current()[0] == "a"
    assert waits.current() == ("", 0.0)


async def test_a_passed_deadline_stops_the_waiting_task() -> None:
    waits = Waits(warn_after_s=0.01, on_deadline="stop")
    async with asyncio.timeout(10):
        with pytest.raises(DeadlinePassed, match="waited more than 0 s for godot") as caught:
            async with waits("godot", deadline_s=0.02):
                await asyncio.Event().wait()
    assert caught.value.exit_code == 5


async def test_a_passed_deadline_only_warns_unless_told(caplog: pytest.LogCaptureFixture) -> None:
    waits = Waits(warn_after_s=0.01)
    async with asyncio.timeout(10), waits("godot", deadline_s=0.02):
        while "deadline of 0 s passed: godot" not in caplog.text:
            await asyncio.sleep(0.002)


async def test_somebody_elses_cancellation_stays_one() -> None:
    waits: Any = Waits(warn_after_s=0.01, on_deadline="stop")

    async def wait() -> None:
        async with waits("godot", deadline_s=60):
            await asyncio.Event().wait()

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
