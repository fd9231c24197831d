"""What there is to see at one moment. Everything is relative to it: ages, not times.

The names here are those of `--json`.
"""

from dataclasses import dataclass, field
from typing import Any

from schemas.reports import RewardReport, RolloutReport, TrainerReport

SILENT_S = 8.0
"""Who sends a heartbeat every two seconds and was not heard for so long is silent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSeen:
    """The broker, and the way to it."""

    address: str = ""
    connected: bool = True
    error: str = ""
    """Why it is not."""
    missing: bool = False
    """It answers, and has no run of this name."""
    since_s: float = 0.0
    """Connected, or not, for so long."""
    management: str = ""
    """Why the management API cannot be asked; empty when it can."""
    alarms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSeen:
    """A queue. None: not known, for the management API cannot be asked."""

    name: str
    ready: int | None = None
    unacknowledged: int | None = None
    consumers: int | None = None
    in_per_s: float | None = None
    out_per_s: float | None = None
    bytes: int | None = None
    limit: str = ""
    """What bounds it: the credits, or an argument or policy of the queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSeen:
    """A process of a role."""

    role: str
    name: str
    host: str = ""
    pid: int = 0
    state: str = "running"
    heard_s: float = 0.0
    """Since its newest heartbeat."""
    waiting_for: str = ""
    waiting_s: float = 0.0
    version: int = -1
    slots: int = 0
    slots_used: int = 0
    refuses: int = -1
    error: str = ""
    before: str = ""
    counters: dict[str, float] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)
    """Change per second of counters, over some seconds."""
    rollout: RolloutReport | None = None
    reward: RewardReport | None = None
    trainer: TrainerReport | None = None

    @property
    def silent(self) -> bool:
        """Whether it was not heard for too long."""
        return self.heard_s >= SILENT_S

    @property
    def alive(self) -> bool:
        """Whether it is heard and means to stay."""
        return not self.silent and self.state not in ("leaving", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSeen:
    """The run, as its trainer tells it."""

    name: str
    run_id: str = ""
    wanted: str = ""
    """`running`, `paused`, `draining`, `stopped`; empty: nothing was heard."""
    step: int = 0
    num_steps: int = 0
    version: int = -1
    """Newest published."""
    heard_s: float | None = None
    """Since the trainer's newest word; None: nothing was heard."""
    evaluated_s: float | None = None
    """Since an evaluation was under way, 0 while one is; None: none was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What the recipe says of sizes."""

    rollout_workers: int = 1
    reward_workers: int = 1
    group_size: int = 1
    groups_per_step: int = 1
    max_staleness: float = 0.5
    max_version_lag: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Everything at one moment."""

    run: RunSeen
    listened_s: float
    """How long the broker was heard without a break."""
    expected: Expected = Expected()
    broker: BrokerSeen = BrokerSeen()
    queues: tuple[QueueSeen, ...] = ()
    workers: tuple[WorkerSeen, ...] = ()

    def of(self, role: str) -> list[WorkerSeen]:
        """Workers of a role that are heard and mean to stay."""
        return [worker for worker in self.workers if worker.role == role and worker.alive]

    @property
    def trainer(self) -> WorkerSeen | None:
        """The trainer, if it is heard."""
        return next(iter(self.of("trainer")), None)

    @property
    def over(self) -> bool:
        """Whether the run has ended, so that nobody need be there."""
        return self.run.wanted == "stopped"

    def ready(self, *names: str) -> int:
        """Messages ready in some queues, as far as it is known."""
        return sum(queue.ready or 0 for queue in self.queues if queue.name in names)

    def waiting(self, *names: str) -> int:
        """The same, with those that somebody was given and has not acknowledged."""
        seen = [queue for queue in self.queues if queue.name in names]
        return sum((queue.ready or 0) + (queue.unacknowledged or 0) for queue in seen)

    @property
    def slots(self) -> tuple[int, int]:
        """Slots used, and slots, of the rollout workers."""
        workers = self.of("rollout")
        return sum(one.slots_used for one in workers), sum(one.slots for one in workers)

    def total(self, role: str, counter: str) -> float:
        """A counter of all workers of a role."""
        return sum(one.counters.get(counter, 0.0) for one in self.of(role))

    def rate(self, role: str, counter: str) -> float:
        """Change per second of it."""
        return sum(one.rates.get(counter, 0.0) for one in self.of(role))

    def share(self, counter: str) -> float | None:
        """Share of its time that the trainer spends on `wait_s`, `train_s`, ...; None: unknown."""
        trainer = self.trainer
        return None if trainer is None else trainer.rates.get(counter)


def histogram(rows: list[tuple[tuple[Any, int], ...]]) -> dict[Any, int]:
    """Counts by key, added up, in order of the keys."""
    total: dict[Any, int] = {}
    for row in rows:
        for key, count in row:
            total[key] = total.get(key, 0) + count
    return dict(sorted(total.items()))
