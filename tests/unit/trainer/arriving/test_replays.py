"""Whatever a replay is, and whichever queue it comes from: acknowledged, counted, and forgotten."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from consumers.trainer.arriving.arrivals import QUEUES, Arrivals
from consumers.trainer.arriving.chronicle import Chronicle
from consumers.trainer.arriving.shelf import Shelf
from consumers.trainer.arriving.tally import Tally
from consumers.trainer.books.evaluation import Evaluations
from consumers.trainer.books.ledger import Ledger
from consumers.trainer.steering.clock import PausableClock
from consumers.trainer.steering.credits import Credits
from consumers.trainer.steering.fence import Fence
from infra.amqp.message import Delivery, Outgoing
from infra.runs.incarnation import Incarnations
from infra.runs.journal import Journal
from infra.runs.journal_reader import JournalReader
from schemas.config import RunConfig
from schemas.headers import REPLAY
from schemas.journal import Arrived, Confirmed, Issued, Opened
from schemas.work import Credit
from tests.factories.contexts import role_context
from tests.factories.deliveries import delivery
from tests.factories.world import VOCAB_SIZE, failure, headers_of, message_of, trajectory
from tests.unit.trainer.books.ledger_runs import rules

RUN_ID = "r"


class Inbox:
    """A broker that gives what is put in, and keeps what it is told."""

    app_id = "trainer/t"

    def __init__(self) -> None:
        self.queues: dict[str, asyncio.Queue[Delivery]] = {q: asyncio.Queue() for q in QUEUES}
        self.acked: list[str] = []
        self.published: list[Outgoing] = []

    def subscribe(self, queue: str, *, prefetch: int) -> "Stream":
        return Stream(self.queues[queue])

    def held(self, delivery: Delivery) -> bool:
        return True

    def ack(self, delivery: Delivery) -> bool:
        self.acked.append(delivery.envelope.message_id)
        return True

    async def publish(self, message: Outgoing, *, timeout_s: float | None = None) -> None:
        self.published.append(message)


class Stream:
    """One subscription."""

    def __init__(self, queue: "asyncio.Queue[Delivery]") -> None:
        self._queue = queue

    def close(self) -> None:
        return None

    async def __aiter__(self) -> AsyncIterator[Delivery]:
        while True:
            yield await self._queue.get()


class Desk:
    """A trainer's intake that has issued group 0 of three members."""

    def __init__(self, tmp_path: Path) -> None:
        fence = Fence(Incarnations(tmp_path / "incarnations"))
        opened = Opened(run_id=RUN_ID, incarnation=fence.incarnation, step=0)
        self.reader = JournalReader(tmp_path / "journal")
        self.chronicle = Chronicle(
            journal=Journal(tmp_path / "journal", opened),
            ledger=Ledger(rules()),
            evaluations=Evaluations(),
            fence=fence,
            shelf=Shelf(self.reader),
            max_fruitless=9,
        )
        self.chronicle.note(Issued(groups=(0,)))
        self.chronicle.note(Confirmed(groups=(0,)))
        self.inbox = Inbox()
        config = RunConfig.model_validate(
            {
                "run": {"name": "t", "steps": 1},
                "model": {"path": "m"},
                "data": {"train": [{"path": "d.jsonl"}]},
                "reward": {"functions": [{"use": "exact"}]},
                "trainer": {"lr": 0.1},
            }
        )
        context = role_context(config, self.inbox, role="trainer", run_id=RUN_ID)
        credits = Credits(context, self.chronicle, PausableClock(), run_id=RUN_ID)
        self.arrivals = Arrivals(
            context,
            self.chronicle,
            Tally(),
            run_id=RUN_ID,
            vocab_size=VOCAB_SIZE,
            credits=credits,
        )
        self.arrivals.newest_published = 0

    async def take(self, *deliveries: Delivery) -> None:
        """Take these in, and come to rest."""
        for one in deliveries:
            self.inbox.queues[one.queue].put_nowait(one)
        running = asyncio.create_task(self.arrivals.run())
        async with asyncio.timeout(20):
            while len(self.inbox.acked) < len(deliveries):
                await asyncio.sleep(0.001)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    def arrived(self) -> list[str]:
        """Rollouts that the journal took."""
        found = (entry.record for entry in self.reader.records())
        return [record.rollout_id for record in found if isinstance(record, Arrived)]


def member(index: int, queue: str, **headers: Any) -> Delivery:
    """What comes back for a member of group 0; with a mark, of a replay."""
    credit = Credit(group=0, indexes=(0, 1, 2), dataset_fingerprint="f", seed=0, group_size=3)
    model = (
        failure(credit, index)
        if queue == "failures"
        else trajectory(credit, index, version=0, reward=float(index))
    )
    message = message_of(model, headers_of(credit, index, run_id=RUN_ID), app_id="w")
    envelope = replace(
        message.envelope,
        message_id=f"{queue}:{index}:{headers}",
        headers={**message.envelope.headers, **headers},
    )
    return delivery(queue, envelope, message.body)


async def test_only_what_is_live_is_journaled(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    await desk.take(
        *(member(index, queue, replay="r1") for queue in QUEUES for index in range(3)),
        member(1, "trajectories"),
        member(0, "trajectories", replay="r2"),
    )
    assert desk.arrived() == ["0.1"]
    assert desk.chronicle.ledger.books().open == 1
    assert desk.arrivals.replays_ignored == 10
    assert desk.inbox.published == []


@pytest.mark.parametrize("value", ["", "r1", "x" * 5000, "no name", 0, 1, True])
async def test_whatever_the_mark_says(value: object, tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    await desk.take(*(member(index, "trajectories", **{REPLAY: value}) for index in range(3)))
    assert desk.arrived() == [] and desk.arrivals.replays_ignored == 3


async def test_it_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk(tmp_path)
    with caplog.at_level(logging.INFO):
        await desk.take(*(member(index, "failures", replay="r1") for index in range(3)))
    assert [r.getMessage() for r in caplog.records if "replay" in r.getMessage()] == [
        "replay r1: what is replayed is acknowledged here and counts nowhere"
    ]
