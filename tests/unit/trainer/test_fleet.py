"""Who is at work, by their heartbeats; who is gone is forgotten."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from consumers.trainer.steering import fleet
from infra.amqp.codec import encode
from schemas.control import Heartbeat
from schemas.reports import RolloutReport, Suspect


def heard(role: str, worker: str, *rollout_ids: str, **fields: Any) -> Any:
    """A heartbeat as it is delivered."""
    facts = {"host": "h", "pid": 1, "state": "running", "rollout_ids": rollout_ids, **fields}
    beat = Heartbeat.model_validate({"role": role, "worker": worker, **facts})
    envelope, body = encode(beat, app_id="x", correlation_id="x", headers={})
    return SimpleNamespace(envelope=envelope, body=body)


def context(events: Any) -> Any:
    return SimpleNamespace(broker=SimpleNamespace(events=events), known_run_id="a")


async def test_what_another_run_of_the_name_holds_does_not_count() -> None:
    async def events() -> AsyncIterator[Any]:
        yield heard("rollout", "w1", "1.0", run_id="a", version=3)
        yield heard("rollout", "w2", "2.0", run_id="b", version=9, refuses=4)
        yield heard("rollout", "w1", "3.0", run_id="b", state="left")
        yield heard("rollout", "w3", run_id="")

    listener = fleet.Fleet(context(events))
    await listener.run()
    assert listener.held() == {"1.0"}
    assert (listener.newest_served(), listener.newest_refused()) == (3, -1)
    assert [beat.worker for beat in listener.alive()] == ["w1", "w3"]


async def test_workers_that_come_and_go_are_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0
    monkeypatch.setattr(fleet, "_now", lambda: clock)

    async def events() -> AsyncIterator[Any]:
        nonlocal clock
        for number in range(100):
            yield heard("rollout", f"w{number}", f"{number}.0")
            yield heard("reward", "lasting")
            clock += 10

    listener = fleet.Fleet(context(events))
    await listener.run()
    assert listener.held() == {"99.0"}
    assert sorted(beat.worker for beat in listener.alive()) == ["lasting", "w99"]
    assert len(listener._beats) <= 8
    assert listener.describe() == "no producer process is heard"


@pytest.mark.parametrize(
    ("workers", "refused"),
    [
        ([], False),
        ([("a", 4, 5)], True),
        ([("a", 4, 5), ("b", 3, 5)], True),
        ([("a", 4, 5), ("b", 4, -1)], False),  # may still read it
        ([("a", 4, 5), ("b", 5, -1)], False),  # serves it
        ([("a", 4, 5), ("b", -1, -1)], True),  # has just begun
        ([("a", -1, 5)], True),  # has begun, and finds nothing else
        ([("a", -1, -1)], False),
        ([("a", 4, 3)], False),  # an older one
    ],
)
async def test_a_version_is_refused_when_nobody_serves_it_and_those_who_could_say_so(
    monkeypatch: pytest.MonkeyPatch, workers: list[tuple[str, int, int]], refused: bool
) -> None:
    monkeypatch.setattr(fleet, "_now", lambda: 0.0)

    async def events() -> AsyncIterator[Any]:
        for name, version, refuses in workers:
            yield heard("rollout", name, version=version, refuses=refuses)
        yield heard("reward", "r")

    listener = fleet.Fleet(context(events))
    await listener.run()
    assert listener.refuses(5) is refused
    assert listener.newest_served() == max((version for _, version, _ in workers), default=-1)


async def test_who_stays_is_waited_for_until_it_leaves_or_is_not_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that was cut off when the run ended gets `GONE_AFTER_S` from then on."""
    clock = 0.0
    monkeypatch.setattr(fleet, "_now", lambda: clock)

    async def events() -> AsyncIterator[Any]:
        for name in ("stays", "leaves", "foreign"):
            yield heard("rollout", name, run_id="b" if name == "foreign" else "a")
        left = Heartbeat(run_id="a", role="rollout", worker="leaves", host="h", pid=1, state="left")
        envelope, body = encode(left, app_id="x", correlation_id="x", headers={})
        yield SimpleNamespace(envelope=envelope, body=body)
        yield heard("trainer", "t", run_id="a")

    listener = fleet.Fleet(context(events))
    await listener.run()
    assert listener.staying(0.0) == ["rollout/stays"]
    clock = 40.0
    assert listener.staying(30.0) == ["rollout/stays"]
    assert listener.alive() == []
    clock = 46.0
    assert listener.staying(30.0) == []
    clock = 100.0
    assert listener.staying(99.0) == []


async def test_who_came_back_is_remembered_when_his_worker_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = 0.0
    monkeypatch.setattr(fleet, "_now", lambda: clock)
    reports = [
        RolloutReport(engine="e", suspects=(Suspect(rollout_id="3.1", returns=count),))
        for count in (2, 3)
    ]

    async def events() -> AsyncIterator[Any]:
        for report in reports:
            yield heard("rollout", "w1", rollout=report)

    listener = fleet.Fleet(context(events))
    await listener.run()
    clock = 59.0
    assert listener.suspects() == (Suspect(rollout_id="3.1", returns=3),)
    clock = 61.0
    assert listener.suspects() == ()
