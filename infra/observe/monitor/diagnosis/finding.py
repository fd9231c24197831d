"""A fault that was found."""

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How much it matters."""

    PROBLEM = "problem"
    """The run does not go on, or loses what it does, until somebody acts."""
    WARNING = "warning"
    """It goes on, worse than it could."""
    NOTICE = "notice"
    """Worth knowing."""


class Fault(StrEnum):
    """What can be found; stable names, for machines."""

    BROKER_GONE = "broker_gone"
    NO_RUN = "no_run"
    BROKER_ALARM = "broker_alarm"
    ALL_SILENT = "all_silent"
    TRAINER_SILENT = "trainer_silent"
    WORKER_SILENT = "worker_silent"
    STOPPED_PRODUCER = "stopped_producer"
    NO_WORKER = "no_worker"
    FEWER_WORKERS = "fewer_workers"
    ROLE_FAILED = "role_failed"
    FULL_STORE = "full_store"
    BOOKS = "books_do_not_balance"
    DEAD_ENGINE = "dead_engine"
    STUCK_TOOL = "stuck_tool"
    VERSION_SKEW = "version_skew"
    POISON_PROMPT = "poison_prompt"
    MEMBER_DIED = "member_died"
    SLOW_REWARD = "slow_reward"
    ZERO_VARIANCE = "zero_variance"
    TOO_FEW_SLOTS = "too_few_slots"
    DEAD_LETTERS = "dead_letters"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fault, in words."""

    fault: Fault
    severity: Severity
    who: str
    """Worker, queue, tool or rollout; empty where it is the whole run."""
    what: str
    """What is seen, with numbers."""
    do: str
    """What to do about it."""
