"""Who is at work, by their heartbeats; who is gone is forgotten."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from consumers.trainer.steering import fleet
from infra.amqp.codec import encode
from schemas.control import Heartbeat


def heard(role: str, worker: str, *rollout_ids: str) -> Any:
    """A heartbeat as it is delivered."""
    beat = Heartbeat(
        role=role, worker=worker, host="h", pid=1, state="running", rollout_ids=rollout_ids
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
