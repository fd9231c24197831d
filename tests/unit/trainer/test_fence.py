"""Who holds the fence: a living trainer is told from the last words of a dead one."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from consumers.trainer.steering import fence
from infra.amqp.codec import encode
from infra.amqp.errors import ResourceLocked
from infra.amqp.message import Delivery, Lease
from infra.observe.waits import Waits
from schemas.control import RunState, Wanted


class Heard:
    """What comes over `sync`."""

    def __init__(self, words: list[RunState]) -> None:
        self._words = words

    async def __aiter__(self) -> AsyncIterator[Delivery]:
        for word in self._words:
            envelope, body = encode(word, app_id="trainer/a", correlation_id="", headers={})
            yield Delivery("sync", envelope, body, False, 0, 0, 1, Lease(epoch=1))

    def close(self) -> None:
        """Nothing to close."""


def context(words: list[RunState], locked: Iterator[bool]) -> Any:
    """A broker at which the fence is taken as often as it says."""

    async def exclusive(_name: str) -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if next(locked):
            raise ResourceLocked("held")

    broker = SimpleNamespace(exclusive=exclusive, control=lambda: Heard(words))
    section = SimpleNamespace(run=SimpleNamespace(name="r"), broker=SimpleNamespace(heartbeat=15))
    return SimpleNamespace(config=section, broker=broker, waits=Waits())


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fence, "_RETRY_S", 0.001)


async def test_last_words_of_a_dead_trainer_refuse_nobody() -> None:
    """The broker gives them out just before it frees the queue."""
    locked = iter([True, False])
    await fence.hold_queue(context([RunState(run_id="r", number=1)], locked))
    assert list(locked) == []


async def test_a_trainer_that_is_heard_and_stays_is_another() -> None:
    locked = iter([True] * 100)
    with pytest.raises(fence.AnotherTrainer, match=r"it \(trainer/a\) was just heard"):
        await fence.hold_queue(context([RunState(run_id="r", number=1)], locked))


async def test_a_farewell_is_no_sign_of_life() -> None:
    locked = iter([True] * 20 + [False])
    said = RunState(run_id="r", number=1, wanted=Wanted.STOPPED)
    await fence.hold_queue(context([said], locked))
    assert list(locked) == []
