"""The books, counted again from the journal's raw records, and not by the trainer's ledger.

    Issued -> open -> a report of each member -> Batch or GroupsClosed -> ended, once

A member is *lost* when its group ended although nothing was heard of it, when it came back whole
and its group ended without it (not in the batch, closed as dead with enough members, closed as
filtered with unequal rewards), or when its group was left behind (see `left_behind`). A record
that contradicts the ones before it is a *contradiction*: the books are off by it.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from infra.runs.folder import RunFolder
from infra.runs.journal_reader import JournalReader
from schemas.config import RunConfig
from schemas.headers import Purpose, rollout_id_of
from schemas.journal import (
    Arrived,
    Batch,
    Closed,
    GroupsClosed,
    Issued,
    JournalRecord,
    Late,
    Published,
    Skipped,
    Stepped,
)


@dataclass(slots=True)
class Member:
    """What the journal says about one rollout of an open group."""

    attempt: int = 0
    reward: float | None = None
    """Of the first trajectory that came."""
    oldest_version: int | None = None
    failed: bool = False
    """Its newest attempt failed, and nothing else came."""

    @property
    def silent(self) -> bool:
        """Nothing was heard of it."""
        return self.reward is None and not self.failed


@dataclass(slots=True)
class Group:
    """An open group."""

    members: list[Member]
    version: int
    """Newest published when it was issued first."""
    attempt: int = 0

    @property
    def missing(self) -> list[int]:
        """Silent members; all, where none is and the group should have ended."""
        silent = [index for index, member in enumerate(self.members) if member.silent]
        return silent or list(range(len(self.members)))


@dataclass(frozen=True, slots=True)
class Counts:
    """What must agree with the trainer's own books."""

    issued: int
    open: int
    trained: int
    filtered: int
    stale: int
    dead: int


@dataclass(slots=True)
class Recount:
    """Takes records in order, and never raises: what does not fit is written down."""

    config: RunConfig
    groups: dict[int, Group] = field(default_factory=dict)
    ends: dict[int, str] = field(default_factory=dict)
    num_issued: int = 0
    generated: int = 0
    """Reports of training rollouts, late ones and failures included."""
    failures: int = 0
    version: int = -1
    steps: dict[int, str] = field(default_factory=dict)
    """Step -> hash of its weights."""
    step: int = 0
    """Newest decided."""
    batches: dict[int, Batch] = field(default_factory=dict)
    trained: Counter[str] = field(default_factory=Counter)
    """Rollout id -> batches that it was in."""
    trained_groups: Counter[int] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    contradictions: list[str] = field(default_factory=list)

    def take(self, record: JournalRecord) -> None:
        """Count one record."""
        match record:
            case Issued() if record.purpose is Purpose.TRAIN:
                for number in record.groups:
                    self._issue(number, record)
            case Arrived() if record.purpose is Purpose.TRAIN:
                self.generated += 1
                self._arrive(record)
            case Late() if record.purpose is Purpose.TRAIN:
                self.generated += 1
            case Batch():
                self._take_batch(record)
            case GroupsClosed():
                for closed in record.closed:
                    self._close(closed)
            case Skipped():
                self._skip(record)
            case Stepped():
                self.steps[record.step] = record.weights_sha256
            case Published():
                self.version = max(self.version, record.version)
            case _:
                pass

    def counts(self) -> Counts:
        """How many groups are where."""
        ended = Counter(self.ends.values())
        return Counts(
            issued=self.num_issued,
            open=len(self.groups),
            trained=ended["trained"],
            filtered=ended["filtered"],
            stale=ended["stale"],
            dead=ended["dead"],
        )

    def twice(self) -> list[str]:
        """Rollouts, and groups, in more than one batch."""
        rollouts = [name for name, count in self.trained.items() if count > 1]
        groups = [f"group {n}" for n, count in self.trained_groups.items() if count > 1]
        alone = [name for name in groups if not _any_of(name, rollouts)]
        return [*rollouts, *alone]

    def left_behind(self, due: int = 0) -> list[str]:
        """Members of open groups that should have ended: silent ones, or all where all came.

        Flow control keeps at most `(1 + max_staleness) * groups_per_step` groups open, and nothing
        is to be older than `max_version_lag`. A group issued more than twice that many versions
        before the newest, and open groups beyond twice that number, oldest first, are left behind.

        Args:
            due: So many groups were given the time to end.
        """
        algorithm = self.config.algorithm
        bound = 2 * math.ceil((1 + algorithm.max_staleness) * algorithm.groups_per_step)
        excess = sorted(self.groups)[: max(0, len(self.groups) - bound)]
        old = [
            number
            for number, group in self.groups.items()
            if number < due or self.version - group.version > 2 * max(1, algorithm.max_version_lag)
        ]
        return [
            f"{rollout_id_of(Purpose.TRAIN, number, index)} is still open, issued at version "
            f"{self.groups[number].version} of {self.version}"
            for number in sorted({*excess, *old})
            for index in self.groups[number].missing
        ]

    # -- inside

    def _issue(self, number: int, record: Issued) -> None:
        size = self.config.algorithm.group_size
        if record.attempt == 0:
            if number in self.groups or number in self.ends:
                self.contradictions.append(f"credit {number} was issued twice")
                return
            if number != self.num_issued:
                self.contradictions.append(f"credit {number} follows {self.num_issued - 1}")
            self.num_issued = max(self.num_issued, number + 1)
            self.groups[number] = Group([Member() for _ in range(size)], self.version)
            return
        group = self.groups.get(number)
        if group is None or record.attempt != group.attempt + 1:
            self.contradictions.append(f"attempt {record.attempt} of group {number} fits nothing")
            return
        group.attempt = record.attempt
        for index in record.indexes or range(size):
            group.members[index].attempt = record.attempt
            group.members[index].failed = False

    def _arrive(self, record: Arrived) -> None:
        failed = record.reward is None
        self.failures += failed
        group = self.groups.get(record.group)
        if group is None or record.index >= len(group.members):
            if record.group >= self.num_issued or group is not None:
                self.contradictions.append(f"{record.rollout_id} arrived, but was never issued")
            return
        members = group.members if record.index < 0 else [group.members[record.index]]
        for member in members:
            if member.reward is not None:
                continue
            if not failed:
                member.reward, member.oldest_version = record.reward, record.oldest_version
                member.failed = False
            elif member.attempt == record.attempt:
                member.failed = True

    def _take_batch(self, record: Batch) -> None:
        if record.step != self.step + 1:
            self.contradictions.append(f"step {record.step} follows step {self.step}")
        self.step = record.step
        self.batches[record.step] = record
        self.trained.update(record.members)
        self.trained_groups.update(record.groups)
        closed = {closed.group for closed in record.closed if closed.end == "trained"}
        if closed != set(record.groups) or len(closed) != len(record.closed):
            self.contradictions.append(
                f"step {record.step} trains groups {sorted(record.groups)} and closes "
                f"{sorted(closed)} as trained"
            )
        came = {
            rollout_id_of(Purpose.TRAIN, number, index)
            for number in record.groups
            for index, member in enumerate(self._members(number))
            if member.reward is not None
        }
        stale = self._stale(record.groups)
        for name in sorted(set(record.members) - came):
            self.contradictions.append(f"step {record.step} trains {name}, which never came")
        for name in sorted(came - stale - set(record.members)):
            self.lost.append(f"{name} came back and is not in step {record.step} of its group")
        for one in record.closed:
            self._close(one)

    def _close(self, closed: Closed) -> None:
        group = self.groups.pop(closed.group, None)
        if group is None:
            state = (
                f"ended as {self.ends[closed.group]}" if closed.group in self.ends else "unknown"
            )
            self.contradictions.append(
                f"group {closed.group} ends as {closed.end}, but it is {state}"
            )
            return
        self.ends[closed.group] = closed.end
        self.lost += [
            f"{rollout_id_of(Purpose.TRAIN, closed.group, index)} was never heard of, its group "
            f"ended as {closed.end}"
            for index, member in enumerate(group.members)
            if member.silent
        ]
        if why := self._unjust(closed, group):
            self.lost += [
                f"{rollout_id_of(Purpose.TRAIN, closed.group, index)} came back, its group {why}"
                for index, member in enumerate(group.members)
                if member.reward is not None
            ]

    def _unjust(self, closed: Closed, group: Group) -> str:
        """Why this end is wrong for members that came back; empty when it is right."""
        rewards = [m.reward for m in group.members if m.reward is not None and not self._old(m)]
        enough = len(rewards) >= self.config.algorithm.min_group_size
        if closed.end == "filtered" and (not enough or len(set(rewards)) > 1):
            return f"was filtered with rewards {rewards}"
        if closed.end in ("dead", "stale") and enough:
            return f"ended as {closed.end} with {len(rewards)} usable members"
        return ""

    def _skip(self, record: Skipped) -> None:
        batch = self.batches.get(record.step)
        if batch is None or set(batch.groups) != set(record.groups):
            self.contradictions.append(f"step {record.step} is skipped, but was not decided so")
            return
        self.trained.subtract(batch.members)
        self.trained_groups.subtract(batch.groups)
        self.ends |= dict.fromkeys(record.groups, "dead")

    def _members(self, number: int) -> list[Member]:
        group = self.groups.get(number)
        return group.members if group is not None else []

    def _old(self, member: Member) -> bool:
        algorithm = self.config.algorithm
        oldest = member.oldest_version
        too_old = oldest is not None and self.version - oldest > algorithm.max_version_lag
        return algorithm.on_stale == "drop" and too_old

    def _stale(self, numbers: Iterable[int]) -> set[str]:
        return {
            rollout_id_of(Purpose.TRAIN, number, index)
            for number in numbers
            for index, member in enumerate(self._members(number))
            if self._old(member)
        }


def _any_of(group: str, rollouts: Iterable[str]) -> bool:
    number = group.removeprefix("group ")
    return any(name.startswith(f"{number}.") for name in rollouts)


def recounted(config: RunConfig, folder: RunFolder) -> Recount:
    """A run's books as its journal has them at this moment.

    Raises:
        JournalCorrupt: A record in the middle is damaged, or a segment was trimmed meanwhile.
    """
    recount = Recount(config)
    for entry in JournalReader(folder.journal).records():
        recount.take(entry.record)
    return recount
