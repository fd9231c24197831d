"""What travels on `sync` and `events`: weights, run state, commands, heartbeats."""

from enum import StrEnum
from typing import Literal, Self

from pydantic import Field, model_validator

from schemas.base import Count, Frozen, Int64, Message
from schemas.reports import RewardReport, RolloutReport, TrainerReport


class WeightFile(Frozen):
    """One file of a version in the weight store."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Plain file name inside the version's folder."""
    size_bytes: Count
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class WeightsPublished(Message):
    """A policy version is in the store. Broadcast on `sync`, and kept there as its manifest."""

    run_id: str
    version: Count
    incarnation: Count
    """Of the trainer that wrote it."""
    step: Count
    """Optimizer steps behind it."""
    folder: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Of the version, inside the store."""
    full: tuple[WeightFile, ...] = ()
    """Safetensors files of the whole version; only keyframes have them."""
    base_version: Int64 | None = None
    """Version that `delta` starts from; None without a delta."""
    delta: tuple[WeightFile, ...] = ()
    """What changed since `base_version` (`infra/weights/delta`)."""
    adapter: bool = False
    """Whether `delta` is a low-rank adapter of the starting model (`infra/weights/adapter.py`).
    Then it leads here from any version of the run, and `base_version` is one to begin with."""
    fingerprint: str
    """Of the tensors, independent of how they are filed (`infra/weights/fingerprint.py`)."""

    @model_validator(mode="after")
    def _can_be_had(self) -> Self:
        if not (self.full or self.delta):
            raise ValueError(f"version {self.version} names no file")
        if self.adapter and not self.delta:
            raise ValueError(f"version {self.version} has no file of its adapter")
        if bool(self.delta) != (self.base_version is not None):
            raise ValueError(f"version {self.version}: a delta and its base_version go together")
        if self.base_version is not None and not 0 <= self.base_version < self.version:
            raise ValueError(f"version {self.version} cannot start from {self.base_version}")
        return self


class Wanted(StrEnum):
    """The state that the run should be in."""

    RUNNING = "running"
    """Go on."""
    PAUSED = "paused"
    """Admit nothing new; what runs may finish."""
    DRAINING = "draining"
    """Hand over what runs, then wait."""
    STOPPED = "stopped"
    """The run is over: every role leaves with exit code 0."""


class RunState(Message):
    """State, not event: repeated every few seconds by the trainer."""

    run_id: str
    number: Count
    """Rises with each change; receivers ignore lower ones."""
    incarnation: Count = 0
    wanted: Wanted = Wanted.RUNNING
    version: Int64 = -1
    """Newest published; -1 before the first."""
    step: Count = 0
    num_steps: Count = 0
    evaluating: Int64 = -1
    """Version of the open evaluation; -1 when none is open."""
    closed_early: tuple[Int64, ...] = ()
    """Groups whose unfinished members need not be continued."""


Verb = Literal["pause", "resume", "drain", "stop"]

WISHES: dict[Verb, Wanted] = {
    "pause": Wanted.PAUSED,
    "resume": Wanted.RUNNING,
    "drain": Wanted.DRAINING,
    "stop": Wanted.STOPPED,
}
"""What a command wants the run to be."""


class Command(Message):
    """An operator's wish, answered by the trainer with a new `RunState` and by every role with a
    `CommandAck`. It may be sent again: who has heard it answers again."""

    run_id: str
    """Of the run that is meant: roles of another run of the same name ignore it. Empty when nobody
    was heard that belongs to a run: then it is for those that belong to none yet."""
    verb: Verb
    number: Count
    """Rises from command to command of one operator."""
    by: str = ""
    """Who asks: a name that no other process has."""


class CommandAck(Message):
    """A role's answer to a command (`events`)."""

    run_id: str = ""
    role: str
    worker: str
    host: str
    verb: Verb
    number: Count
    by: str = ""
    """Number and name as in the command."""
    done: bool
    """False: it was heard. True: this role is where it was told to be."""
    detail: str = ""
    """What it still has to do, or where it stands now."""


class Heartbeat(Message):
    """What a role is doing (`events`)."""

    run_id: str = ""
    role: str
    worker: str
    host: str
    pid: Int64
    state: str
    """`starting`, `running`, `waiting`, `swapping`, `paused`, `draining`, `leaving`, `left`; the
    last one is the last word of a process."""
    version: Int64 = -1
    """Served by a rollout worker, measured; -1 elsewhere."""
    fingerprint: str = ""
    slots: Count = 0
    rollout_ids: tuple[str, ...] = ()
    """Rollouts whose delivery it holds."""
    tokens_unsaved: Count = 0
    """Sampled since these were taken up: what a kill of this worker would have sampled again."""
    refuses: Int64 = -1
    """Version that a rollout worker was told of and cannot serve: damaged, missing, or not fitting
    its engine; -1 for none."""
    waiting_for: str = ""
    waiting_s: float = 0.0
    metrics_port: Count = 0
    """Of its Prometheus endpoint; 0 for none."""
    counters: dict[str, float] = {}
    error: str = ""
    """Why it leaves, in the last word of a role that ends by an error."""
    before: str = ""
    """How the process of this name before it ended, as its supervisor saw it."""
    rollout: RolloutReport | None = None
    reward: RewardReport | None = None
    trainer: TrainerReport | None = None
