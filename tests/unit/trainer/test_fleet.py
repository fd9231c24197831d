"""Who is at work, by their heartbeats; who is gone is forgotten."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from consumers.trainer.steering import fleet
from infra.amqp.codec import encode
from schemas.control import Heartbeat


def heard(role: str, worker: str, *rollout_ids: str, **fields: Any) -> Any:
    """A heartbeat as it is delivered."""
    beat = Heartbeat(
        role=role,
        worker=worker,
        host="h",
        pid=1,
        state="running",
        rollout_ids=rollout_ids,
        **fields,
    )
    envelope, body = encode(beat, app_id="x", correlation_id="x", headers={})
    return SimpleNamespace(envelope=envelope, body=body)


async def test_workers_that_come_and_go_are_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0
    monkeypatch.setattr(fleet, "_now", lambda: clock)

    async def events() -> AsyncIterator[Any]:
        nonlocal clock
        for number in range(100):
            yield heard("rollout", f"w{number}", f"{number}.0")
            yield heard("reward", "lasting")
            clock += 10

    listener = fleet.Fleet(SimpleNamespace(broker=SimpleNamespace(events=events)))  # type: ignore[arg-type]
    await listener.run()
    assert listener.held() == {"99.0"}
    assert sorted(beat.worker for beat in listener.alive()) == ["lasting", "w99"]
    assert len(listener._beats) <= 3
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

    listener = fleet.Fleet(SimpleNamespace(broker=SimpleNamespace(events=events)))  # type: ignore[arg-type]
    await listener.run()
    assert listener.refuses(5) is refused
    assert listener.newest_served() == max((version for _, version, _ in workers), default=-1)
