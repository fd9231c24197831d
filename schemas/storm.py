"""What a storm did to a run and what the run came to: the contents of `storm.json`."""

from enum import StrEnum

from pydantic import Field

from schemas.base import Frozen


class FaultKind(StrEnum):
    """One thing that production does to a run."""

    KILL = "kill"
    """SIGKILL of a role process."""
    TERM = "term"
    """SIGTERM of a role process."""
    FREEZE = "freeze"
    """SIGSTOP beyond the heartbeat, then SIGCONT."""
    BROKER_KILL = "broker_kill"
    """SIGKILL of the broker."""
    BROKER_TERM = "broker_term"
    """An orderly stop of the broker."""
    BROKER_WIPE = "broker_wipe"
    """The broker loses its disk."""
    BROKER_ALARM = "broker_alarm"
    """A memory alarm: publishers are blocked."""
    CUT = "cut"
    """Connections are reset."""
    BLACK_HOLE = "black_hole"
    """Connections stay open and carry nothing."""
    SLOW = "slow"
    """Connections carry little."""
    DUPLICATE = "duplicate"
    """A message is published twice."""
    REORDER = "reorder"
    """Messages are taken and published in another order."""
    TRUNCATE = "truncate"
    """A message's body ends early."""
    FLIP = "flip"
    """A bit of a message's body is flipped."""
    WEIGHTS_TRUNCATE = "weights_truncate"
    """The newest weight file ends early."""
    WEIGHTS_FLIP = "weights_flip"
    """A bit of the newest weight file is flipped."""
    PURGE = "purge"
    """A work queue is emptied by hand."""
    SECOND_TRAINER = "second_trainer"
    """Another trainer is started on the same run."""
    DISK_FULL = "disk_full"
    """The trainer's next writes fail."""


class Fault(Frozen):
    """One injected fault and what was seen of it."""

    kind: FaultKind
    target: str
    """Process, queue or file that it was done to; `broker`."""
    at: float
    """Seconds since the storm began."""
    seconds: float = 0.0
    """How long it lasted."""
    detail: str = ""
    survived: bool = False
    """Whether what it hit worked again afterwards."""
    recovery_seconds: float | None = None
    """From the fault to work flowing again; None where that has no meaning."""


class FaultCount(Frozen):
    """Faults of one kind."""

    injected: int = 0
    survived: int = 0


class StormReport(Frozen):
    """The verdict, found by reading journal, checkpoints, weights and queues from the outside."""

    seed: int
    kills: int
    """SIGKILLs of role processes and of the broker."""
    faults: dict[FaultKind, FaultCount]
    generated: int
    """Rollouts that reached the trainer, late and dead ones included."""
    trained: int
    """Rollouts in batches."""
    lost: int
    trained_twice: int
    ledger_imbalance: int
    dead_letters: int
    unexplained_dead_letters: int
    ks_p: float | None = None
    """Two-sample Kolmogorov-Smirnov test of response lengths against an undisturbed run."""
    recovery_seconds: dict[str, float | None] = Field(default_factory=dict)
    """Medians: worker, reward, producer, trainer, broker."""
    tokens_repeated: int = 0
    """Generated again because a worker was killed."""
    breaches: tuple[str, ...] = ()
    """Everything that was not as promised, in words; empty: the run stood."""
