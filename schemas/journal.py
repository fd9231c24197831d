"""Records of the trainer's journal: what arrived and what was decided.

A record is one JSON header of these models and, for `Arrived`, the message's bytes behind it.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from schemas.base import Count, Frozen, Int64
from schemas.headers import Purpose


class Opened(Frozen):
    """A trainer incarnation began."""

    record: Literal["opened"] = "opened"
    run_id: str
    incarnation: Count
    step: Count
    """Newest step that it had taken, or taken again, when it began."""
    previous_segment: str = ""
    """Last segment of the history that this incarnation continues; empty at the run's start."""
    previous_bytes: Count = 0
    """How much of it counts. What an older incarnation wrote behind it is ignored."""
    config: dict[str, Any] = {}
    """The recipe of this incarnation, its broker's password hidden."""
    code: str = ""
    """Version of its code, in words."""


class Issued(Frozen):
    """Credits that are about to be published."""

    record: Literal["issued"] = "issued"
    groups: tuple[Count, ...]
    indexes: tuple[Count, ...] = ()
    """Members asked for; empty means all."""
    attempt: Count = 0
    min_version: Count = 0
    purpose: Purpose = Purpose.TRAIN
    """For `eval`, the one group is the version to evaluate."""
    at: float = 0.0
    """Seconds since 1970 at the trainer, for people: nothing is decided by it."""
    positions: tuple[Count, ...] = ()
    """In the shuffled dataset, of groups that stand in for closed ones; empty: the next ones."""


class Confirmed(Frozen):
    """Credits that the broker has taken."""

    record: Literal["confirmed"] = "confirmed"
    groups: tuple[Count, ...]
    attempt: Count = 0
    purpose: Purpose = Purpose.TRAIN


class Arrived(Frozen):
    """A trajectory or failure, exactly as it came; its body follows the header.

    What the ledger needs of the body is repeated here, so that it can be rebuilt without decoding.
    """

    record: Literal["arrived"] = "arrived"
    type: str
    message_id: str
    rollout_id: str
    group: Int64
    index: Int64
    """-1 in the failure of a credit: every member that the credit asked for."""
    attempt: Count = 0
    purpose: Purpose
    reward: float | None = None
    """Of a trajectory; None for a failure."""
    oldest_version: Int64 | None = None
    """Of a trajectory's sampled tokens."""
    newest_version: Int64 | None = None
    num_tokens: Count = 0
    error: str = ""
    """Of a failure, one line."""
    content_encoding: str | None = None
    headers: dict[str, Any] = {}


class Late(Frozen):
    """A report of a member that was decided before: known by its id, counted, never trained on."""

    record: Literal["late"] = "late"
    type: str
    rollout_id: str
    group: Int64
    index: Int64
    attempt: Count = 0
    purpose: Purpose = Purpose.TRAIN


class Requeued(Frozen):
    """An operator wants a dead member back. It becomes pending again; if its group is closed, or
    about to be trained, another group is issued for the same prompt."""

    record: Literal["requeued"] = "requeued"
    rollout_id: str
    group: Count
    index: Int64
    """-1: every dead member."""
    purpose: Purpose = Purpose.TRAIN
    letter: str
    """Id of the dead letter."""
    by: str
    at: float = 0.0
    """Seconds since 1970 at the trainer, for people: nothing is decided by it."""


class Closed(Frozen):
    """How a group ended."""

    group: Count
    end: Literal["trained", "filtered", "stale", "dead"]
    reason: str = ""


class Batch(Frozen):
    """One step decided: its members, the groups it closes, the credits it releases."""

    record: Literal["batch"] = "batch"
    step: Count
    version: Int64
    """Of the weights about to be updated."""
    groups: tuple[Count, ...]
    members: tuple[str, ...]
    """Rollout ids in training order."""
    closed: tuple[Closed, ...]
    releases: Count
    """Credits to issue after the step's broadcast."""


class GroupsClosed(Frozen):
    """Groups that ended without a step (filtered, stale, dead)."""

    record: Literal["closed"] = "closed"
    closed: tuple[Closed, ...]


class RanOn(Frozen):
    """What computed a step: what its last bits may depend on, beside the program."""

    torch: str
    """Version."""
    device: str
    """`cpu`, or the accelerator's name."""
    num_threads: Count
    """Of torch."""
    cpu: str
    """Its model, and the vector instructions in use."""


class Stepped(Frozen):
    """A step was done: what replay compares with.

    Its body holds, as little-endian float16, what the weights before the step gave for the sampled
    tokens: against the rollout logprobs, they show where the policy has moved.
    """

    record: Literal["stepped"] = "stepped"
    step: Count
    loss: float
    grad_norm: float
    weights_sha256: str
    ran_on: RanOn | None = None
    logprobs: tuple[tuple[str, Count], ...] = ()
    """Rollout id and number of sampled tokens, in the order of the body."""


class Skipped(Frozen):
    """A decided step that could not be taken and was given up: its groups are dead after all."""

    record: Literal["skipped"] = "skipped"
    step: Count
    groups: tuple[Count, ...]
    reason: str = ""


class Published(Frozen):
    """A version is durable in the store, and about to be broadcast."""

    record: Literal["published"] = "published"
    version: Count
    step: Count
    fingerprint: str


class Evaluated(Frozen):
    """An evaluation closed."""

    record: Literal["evaluated"] = "evaluated"
    version: Count
    num_scored: Count
    num_asked: Count
    reward: float
    metrics: dict[str, float] = {}


JournalRecord = Annotated[
    Opened
    | Issued
    | Confirmed
    | Arrived
    | Late
    | Requeued
    | Batch
    | GroupsClosed
    | Stepped
    | Skipped
    | Published
    | Evaluated,
    Field(discriminator="record"),
]
