"""What the trainer's heartbeat tells: the books, rewards, where its time goes, what is to come."""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from consumers.trainer.arriving.chronicle import Chronicle
from consumers.trainer.books.ends import End
from consumers.trainer.books.group import MemberState
from consumers.trainer.books.staleness import forecast
from consumers.trainer.collect import Collector
from consumers.trainer.publish import Publisher
from consumers.trainer.steering.clock import PausableClock
from consumers.trainer.steering.fleet import Fleet
from infra.roles.context import RoleContext
from schemas.reports import MAX_REWARDS, MAX_ROWS, GivenUp, TrainerReport, short


@dataclass(slots=True, kw_only=True)
class TrainerCounters:
    """Of the run, but for the seconds, which are of this process."""

    step: int
    """Steps decided."""
    version: int
    """Newest published; -1 before the first."""
    issued: int
    """Groups issued."""
    open: int
    """Groups that have not ended."""
    trained: int
    """Groups that ended in a batch."""
    filtered: int
    """Groups that ended with equal rewards."""
    stale: int
    """Groups that ended too old."""
    dead: int
    """Groups that ended with too few members."""
    balanced: bool
    """1 while every issued group is open or has ended once."""
    ready: int
    """Groups that can be trained and are in no batch yet."""
    failed: int
    """Members that were given up."""
    replaced: int
    """Of these, asked for once more."""
    reissued: int
    """Members asked for again because they were lost."""
    late: int
    """Reports of members that were decided before."""
    replays_ignored: int
    """Messages of a replay that were given back unread."""
    wait_s: float
    """Seconds waited for batches, the one under way included."""
    train_s: float
    """Seconds in optimizer steps."""
    publish_s: float
    """Seconds in publications of weights."""

    def as_floats(self) -> dict[str, float]:
        """By name."""
        return {name: float(value) for name, value in asdict(self).items()}


class Vitals:
    """Watches a trainer.

    Args:
        ctx: Of the role.
        chronicle: Ledger and journal.
        collector: Knows how long batches were waited for.
        publisher: Knows how large a version is.
        fleet: Hears of suspects.
        clock: Of the trainer.
        replays: How many messages of replays were ignored.
    """

    def __init__(
        self,
        ctx: RoleContext,
        chronicle: Chronicle,
        collector: Collector,
        publisher: Publisher,
        fleet: Fleet,
        clock: PausableClock,
        replays: Callable[[], int],
    ) -> None:
        self._ctx = ctx
        self._chronicle = chronicle
        self._collector = collector
        self._publisher = publisher
        self._fleet = fleet
        self._clock = clock
        self._replays = replays
        self._rewards: deque[float] = deque(maxlen=MAX_REWARDS)
        self._train_s = self._publish_s = 0.0
        self._num_trainable = -1
        self._num_filtered = 0
        self._trainable_at = clock.now()

    def stepped(self, line: Mapping[str, Any]) -> None:
        """A step was taken; its metrics."""
        self._train_s += line.get("time/train_s", 0.0)
        self._publish_s += line.get("time/publish_s", 0.0)
        if "arrived/reward" in line:
            self._rewards.append(round(float(line["arrived/reward"]), 4))

    def describe(self) -> dict[str, Any]:
        """Fields of the heartbeat."""
        ledger = self._chronicle.ledger
        num_ready = len(ledger.ready())
        members = ledger.totals.counts()
        counters = TrainerCounters(
            step=ledger.step,
            version=ledger.version,
            ready=num_ready,
            **asdict(ledger.books()),
            failed=members["failed"],
            replaced=members["replaced"],
            reissued=members["reissued"],
            late=members["late"],
            replays_ignored=self._replays(),
            wait_s=round(self._collector.waited_s, 3),
            train_s=round(self._train_s, 3),
            publish_s=round(self._publish_s, 3),
        )
        return {"counters": counters.as_floats(), "trainer": self._report(num_ready)}

    def _report(self, num_ready: int) -> TrainerReport:
        ledger, config = self._chronicle.ledger, self._ctx.config
        barren, barren_s = self._barren(num_ready)
        return TrainerReport(
            num_steps=config.run.steps,
            rewards=tuple(self._rewards),
            forecast=forecast(
                ledger.groups.values(),
                step=ledger.step,
                version=ledger.version,
                groups_per_step=config.algorithm.groups_per_step,
                steps_per_publish=config.algorithm.steps_per_publish,
                num_classes=MAX_ROWS,
            ),
            outstanding=sum(
                len(group.indexes(MemberState.PENDING)) for group in ledger.groups.values()
            ),
            barren=barren,
            barren_s=round(barren_s, 1),
            barren_reason=short(self._chronicle.fruitless.reason),
            suspects=self._fleet.suspects(),
            given_up=self._given_up(),
            version_bytes=self._publisher.version_bytes,
        )

    def _barren(self, num_ready: int) -> tuple[int, float]:
        """Groups filtered, and seconds, since one could last be trained, as of the heartbeats."""
        counts, now = self._chronicle.ledger.ends.counts, self._clock.now()
        num_trainable = counts[End.TRAINED] + num_ready
        if num_trainable != self._num_trainable:
            self._num_trainable, self._trainable_at = num_trainable, now
            self._num_filtered = counts[End.FILTERED]
        return max(0, counts[End.FILTERED] - self._num_filtered), now - self._trainable_at

    def _given_up(self) -> GivenUp | None:
        last = self._chronicle.last_failure
        if last is None:
            return None
        return GivenUp(
            rollout_id=short(last.rollout_id),
            error=short(last.error),
            ago_s=round(time.monotonic() - last.at, 1),
        )
