"""Every wait of a role names what is missing, and what never comes ends it with exit code 5."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from infra.roles import control, lifecycle, outages
from infra.roles.context import RoleContext
from infra.roles.errors import DeadlinePassed, ExitCode, LeftWithoutHandover
from infra.roles.lifecycle import report
from tests.unit.infra.roles.role_contexts import make_context


class Broker:
    """Neither answers nor takes anything, unless told otherwise."""

    def __init__(
        self, *, connected: bool = True, blocked: bool = False, num_unconfirmed: int = 0
    ) -> None:
        self.connected, self.blocked = connected, blocked
        self.unconfirmed = (num_unconfirmed, 0.0 if num_unconfirmed else math.inf)
        self.emitted = 0

    def rebuild_control(self) -> None:
        """Nothing comes of it."""

    def control(self) -> "Broker":
        return self

    async def ready(self) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Nothing is open."""

    async def emit(self, message: object) -> None:
        self.emitted += 1


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "SILENCE_S", 0.01)
    monkeypatch.setattr(control, "_CATCH_UP_S", 0.0)
    monkeypatch.setattr(outages, "_LOOK_S", 0.005)

    async def nothing(*_: object) -> None:
        return None

    monkeypatch.setattr(control, "newest_manifest", nothing)


async def silent_trainer(context: RoleContext) -> None:
    context.set_run_id("a")
    await control.watch_silence(context)


async def unbound(context: RoleContext) -> None:
    async def body(_: RoleContext) -> None:
        raise AssertionError("begun although nothing is heard")

    await lifecycle._run_body(context, body)


@pytest.mark.parametrize(
    ("wait", "broker", "missing"),
    [
        (outages.watch_broker, Broker(connected=False), "the broker to answer"),
        (outages.watch_broker, Broker(blocked=True), "the broker's memory or disk alarm to end"),
        (outages.watch_broker, Broker(num_unconfirmed=2), "the broker to confirm 2 messages"),
        (silent_trainer, Broker(), "word from the trainer"),
        (RoleContext.run_id, Broker(), "word from the trainer: the run's id is not known yet"),
        (unbound, Broker(), "the broker to bind us to 'sync'"),
    ],
    ids=["broker", "alarm", "confirms", "trainer", "run-id", "sync"],
)
@pytest.mark.parametrize("on_deadline", ["warn", "stop"])
async def test_what_never_comes_is_named_and_stops_the_role_if_it_is_to(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    wait: Callable[[RoleContext], Awaitable[Any]],
    broker: Broker,
    missing: str,
    on_deadline: Any,
) -> None:
    caplog.set_level("INFO")
    context = make_context(tmp_path, broker=broker, on_deadline=on_deadline)
    waiting = asyncio.ensure_future(wait(context))
    async with asyncio.timeout(20):
        if on_deadline == "stop":
            with pytest.raises((DeadlinePassed, ExceptionGroup)) as caught:
                await waiting
            assert report(caught.value) is ExitCode.DEADLINE
            assert f"waited more than 0 s for {missing}" in caplog.text
        else:
            while f"deadline of 0 s passed: {missing}" not in caplog.text:
                await asyncio.sleep(0.005)
            assert not waiting.done()
            assert context.waits.current()[0] == missing
            waiting.cancel()
    assert f"waiting for {missing} · 0 s" in caplog.text


async def test_an_outage_that_ends_stops_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    broker = Broker(connected=False)
    context = make_context(tmp_path, broker=broker, stall_s=20)
    watching = asyncio.create_task(outages.watch_broker(context))
    async with asyncio.timeout(10):
        for change in ({"connected": True, "blocked": True}, {"blocked": False}):
            while not context.waits.current()[0]:
                await asyncio.sleep(0.001)
            for name, value in change.items():
                setattr(broker, name, value)
            while context.waits.current()[0].startswith("the broker to answer"):
                await asyncio.sleep(0.001)
        while context.waits.current()[0]:
            await asyncio.sleep(0.001)
    assert not watching.done()
    watching.cancel()


class Bound(Broker):
    """Binds at once and says nothing."""

    async def ready(self) -> None:
        return

    def __aiter__(self) -> "Bound":
        return self

    async def __anext__(self) -> object:
        await asyncio.Event().wait()
        raise StopAsyncIteration


async def test_a_body_that_does_not_leave_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "_patience_s", lambda _: 0.02)
    context = make_context(tmp_path, broker=Bound(), stall_s=20)

    async def deaf(context: RoleContext) -> None:
        context.stop.set()
        await asyncio.Event().wait()

    async with asyncio.timeout(10):
        with pytest.raises(LeftWithoutHandover, match="did not hand over within 0 s"):
            await lifecycle._run_body(context, deaf)


async def test_one_that_ignores_even_its_end_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lifecycle, "_patience_s", lambda _: 0.02)
    context = make_context(tmp_path, broker=Bound(), stall_s=20)
    release = asyncio.Event()

    async def stubborn(context: RoleContext) -> None:
        context.stop.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    async with asyncio.timeout(10):
        with pytest.raises(LeftWithoutHandover):
            await lifecycle._run_body(context, stubborn)
    assert "body does not end: left behind" in caplog.text
    release.set()


async def test_the_trainer_may_take_its_time_to_leave_but_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "_patience_s", lambda _: 0.01)
    context = make_context(tmp_path, role="trainer", broker=Bound(), stall_s=20)

    async def slow(context: RoleContext) -> None:
        context.stop.set()
        while context.waits.current()[0] != "the step to end and be saved":
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)

    async with asyncio.timeout(10):
        await lifecycle._run_body(context, slow)
