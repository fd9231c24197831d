"""What the trainer's heartbeat tells: books, rewards, time, and groups that teach nothing."""

import time
from types import SimpleNamespace
from typing import Any

from consumers.trainer.arriving.chronicle import Failed
from consumers.trainer.books.fruitless import Fruitless
from consumers.trainer.books.ledger import Ledger
from consumers.trainer.telling.vitals import Vitals
from schemas.control import Heartbeat
from schemas.headers import Purpose
from schemas.journal import Batch, Closed, GroupsClosed, Issued, Published
from schemas.reports import TrainerReport
from tests.unit.trainer.books.ledger_runs import arrived, rules

ALGORITHM = SimpleNamespace(groups_per_step=2, steps_per_publish=1)
CONFIG = SimpleNamespace(run=SimpleNamespace(steps=50), algorithm=ALGORITHM)


class Room:
    """Vitals on a real ledger, everything else in reach of the test."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ledger = Ledger(rules(max_version_lag=8))
        self.fruitless = Fruitless(100)
        self.chronicle: Any = SimpleNamespace(
            ledger=self.ledger, fruitless=self.fruitless, last_failure=None
        )
        given: Any = SimpleNamespace(
            config=CONFIG,
            now=lambda: self.now,
            waited_s=12.5,
            version_bytes=777,
            suspects=lambda: (),
        )
        self.vitals = Vitals(given, self.chronicle, given, given, given, given, lambda: 2)
        self.ledger.apply(Published(version=0, step=0, fingerprint="f"))

    def issue(self, *groups: int) -> None:
        """Open groups of three."""
        self.ledger.apply(
            Issued(
                groups=groups,
                indexes=(0, 1, 2),
                attempt=0,
                min_version=0,
                purpose=Purpose.TRAIN,
                at=0.0,
            )
        )

    def report(self, group: int, *rewards: float) -> None:
        """All members come in; equal rewards are filtered."""
        for index, reward in enumerate(rewards):
            self.ledger.apply(arrived(group, index, reward=reward))
        due = self.ledger.due()
        if due:
            self.ledger.apply(GroupsClosed(closed=due))
            self.fruitless.add(due)

    def told(self) -> tuple[dict[str, float], TrainerReport]:
        """Counters and report, as they would travel."""
        known = {"role": "trainer", "worker": "t", "host": "h", "pid": 1, "state": "running"}
        beat = Heartbeat.model_validate({**known, **self.vitals.describe()})
        again = Heartbeat.model_validate_json(beat.model_dump_json())
        assert again.trainer is not None
        return again.counters, again.trainer


def test_the_books_and_what_is_out_are_told() -> None:
    room = Room()
    room.issue(0, 1, 2, 3)
    room.report(0, 0.0, 1.0, 0.0)
    room.report(1, 1.0, 1.0, 1.0)
    counters, report = room.told()
    assert {name: counters[name] for name in ("issued", "open", "filtered", "ready")} == {
        "issued": 4, "open": 3, "filtered": 1, "ready": 1,
    }  # fmt: skip
    assert (counters["balanced"], counters["version"], counters["wait_s"]) == (1.0, 0.0, 12.5)
    assert counters["replays_ignored"] == 2.0
    assert (report.num_steps, report.outstanding, report.version_bytes) == (50, 6, 777)
    assert report.forecast == (2, 1)


def test_steps_are_told_by_their_rewards_and_seconds() -> None:
    room = Room()
    for reward in (0.25, None, 0.75):
        line = {"time/train_s": 2.0, "time/publish_s": 0.5}
        room.vitals.stepped(line if reward is None else {**line, "arrived/reward": reward})
    counters, report = room.told()
    assert report.rewards == (0.25, 0.75)
    assert (counters["train_s"], counters["publish_s"]) == (6.0, 1.5)


def test_groups_are_barren_until_one_can_be_trained() -> None:
    room = Room()
    room.issue(*range(6))
    room.told()
    room.now = 10.0
    for group in range(3):
        room.report(group, 0.0, 0.0, 0.0)
    _, report = room.told()
    assert (report.barren, report.barren_s) == (3, 10.0)
    assert report.barren_reason == "all rewards equal 0"
    room.report(3, 0.0, 1.0, 1.0)
    _, report = room.told()
    assert (report.barren, report.barren_s) == (0, 0.0)
    room.ledger.apply(
        Batch(
            step=1,
            version=0,
            groups=(3,),
            members=("3.0", "3.1", "3.2"),
            closed=(Closed(group=3, end="trained"),),
            releases=1,
        )
    )
    room.now = 12.0
    room.report(4, 1.0, 1.0, 1.0)
    _, report = room.told()
    assert (report.barren, report.barren_s) == (1, 2.0)


def test_the_newest_death_is_told_whatever_it_says() -> None:
    room = Room()
    room.chronicle.last_failure = Failed("2.1", "\ud800boom\n" + "x" * 9000, time.monotonic() - 3)
    _, report = room.told()
    assert report.given_up is not None
    assert report.given_up.rollout_id == "2.1"
    assert report.given_up.error.startswith("?boom x")
    assert len(report.given_up.error) == 400
    assert report.given_up.ago_s >= 3
