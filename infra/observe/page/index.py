"""An index over the journal, grown as the journal grows: positions and small facts.

update()   reads the records that are new; headers only, so 10,000 rollouts take a moment
fill()     reads bodies, for facts that only they tell; a thread goes through all of them
"""

import logging
import math
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from threading import RLock

from infra.amqp.errors import BadMessage
from infra.observe.page.facts import Group, Inside, Row, Step, group_key, inside
from infra.roles.errors import WarrenError
from infra.runs.journal_reader import Entry, JournalReader, Position, Stretch
from infra.runs.recorded import trajectory_of
from schemas.base import encodable
from schemas.headers import Purpose
from schemas.journal import (
    Arrived,
    Batch,
    Closed,
    Evaluated,
    GroupsClosed,
    Issued,
    JournalRecord,
    Published,
    Skipped,
    Stepped,
)
from schemas.work import Trajectory

logger = logging.getLogger(__name__)


class Index:
    """Rollouts, groups and steps of one run. Methods may be called from any thread."""

    rows: list[Row]
    by_id: dict[str, list[Row]]
    """Rollout id -> its arrivals; the first trajectory is the one that counts."""
    groups: dict[str, Group]
    steps: dict[int, Step]
    version: int
    """Newest published; -1 before the first."""
    problem: str
    """Why the journal could not be read to its end."""
    num_known: int
    """Rows whose bodies have been read; grows from the first row on."""

    def __init__(self, journal: Path) -> None:
        self.lock = RLock()
        self._journal = journal
        self.reader = JournalReader(journal)
        self._forget()

    def _forget(self) -> None:
        self.rows, self.by_id, self.groups, self.steps = [], {}, {}, {}
        self.version, self.num_known, self.problem = -1, 0, ""
        self._end: Position | None = None
        self._sizes: dict[str, int] = {}

    def update(self) -> None:
        """Take in what was written since the last time."""
        with self.lock:
            try:
                sizes = segment_sizes(self._journal)
                if sizes == self._sizes:
                    return
                self._sizes = sizes
                self.problem = ""
                if self._end is not None and not _continues(self.reader.history(), self._end):
                    self._forget()
                    self._sizes = sizes
                for entry in self.reader.records(self._end):
                    self._take(entry)
                    self._end = entry.end
            except (WarrenError, OSError) as error:
                self.problem = encodable(str(error))

    def _take(self, entry: Entry) -> None:
        record: JournalRecord = entry.record
        match record:
            case Arrived():
                self._arrived(record, entry.position)
            case Issued():
                self._issued(record)
            case Batch():
                self._batch(record)
            case GroupsClosed():
                self._close(record.closed, None)
            case Stepped():
                self._stepped(record, entry.position)
            case Skipped():
                if record.step in self.steps:
                    self.steps[record.step].skipped = record.reason or "skipped"
                for number in record.groups:
                    group = self._group(Purpose.TRAIN, number)
                    group.end, group.reason = "dead", record.reason
            case Published():
                self.version = max(self.version, record.version)
                if record.step in self.steps:
                    self.steps[record.step].published = record.version
            case Evaluated():
                self._group(Purpose.EVAL, record.version).end = "scored"

    def _arrived(self, record: Arrived, position: Position) -> None:
        group = self._group(record.purpose, record.group)
        age = None
        if record.oldest_version is not None and record.purpose is Purpose.TRAIN:
            age = max(0, self.version - record.oldest_version)
        row = Row(
            number=len(self.rows),
            position=position,
            type=record.type,
            rollout_id=record.rollout_id,
            group=group.key,
            index=record.index,
            purpose=record.purpose,
            attempt=record.attempt,
            reward=record.reward,
            oldest=record.oldest_version,
            newest=record.newest_version,
            num_tokens=record.num_tokens,
            error=record.error,
            compressed=bool(record.content_encoding),
            staleness=age,
        )
        self.rows.append(row)
        self.by_id.setdefault(row.rollout_id, []).append(row)
        group.rows.append(row.number)

    def _issued(self, record: Issued) -> None:
        for number in record.groups:
            group = self._group(record.purpose, number)
            group.attempts = max(group.attempts, record.attempt + 1)
            if not group.at:
                group.at, group.min_version = record.at, record.min_version

    def _group(self, purpose: Purpose, number: int) -> Group:
        key = group_key(purpose, number)
        if key not in self.groups:
            self.groups[key] = Group(key=key, number=number, purpose=purpose)
        return self.groups[key]

    def _batch(self, record: Batch) -> None:
        rewards, ages = [], []
        for rollout_id in record.members:
            row = self.counted(rollout_id)
            if row is None:
                continue
            row.step = record.step
            if row.oldest is not None:
                row.staleness = record.version - row.oldest
                ages.append(row.staleness)
            if row.reward is not None:
                rewards.append(row.reward)
        self.steps[record.step] = Step(
            step=record.step,
            version=record.version,
            groups=[str(number) for number in record.groups],
            members=len(record.members),
            rewards=rewards,
            staleness=ages,
        )
        self._close(record.closed, record.step)

    def _stepped(self, record: Stepped, position: Position) -> None:
        step = self.steps.get(record.step)
        if step is not None:
            step.loss, step.grad_norm = _finite(record.loss), _finite(record.grad_norm)
            step.weights_sha256 = record.weights_sha256
            step.logprobs = position if record.logprobs else None

    def _close(self, closed: Iterable[Closed], step: int | None) -> None:
        for one in closed:
            group = self._group(Purpose.TRAIN, one.group)
            group.end, group.reason, group.step = one.end, one.reason, step

    def counted(self, rollout_id: str) -> Row | None:
        """The trajectory that counted, of all that arrived under this id."""
        rows = self.by_id.get(rollout_id, ())
        return next((row for row in rows if row.reward is not None), None)

    def body(self, row: Row) -> tuple[Arrived, Trajectory]:
        """A trajectory, read from the journal.

        Raises:
            BadMessage: It is not the one that was journaled.
            WarrenError, OSError: The journal is damaged, or the segment is gone.
        """
        entry = self.reader.entry(row.position)
        assert isinstance(entry.record, Arrived)
        return entry.record, trajectory_of(entry.record, entry.body)

    def fill(self, rows: Iterable[Row]) -> None:
        """Read the bodies of these rows, where that was not done before."""
        for row in rows:
            if row.inside is None:
                row.inside = self._inside(row)

    def fill_next(self, count: int) -> bool:
        """Read the next bodies in order of arrival; False when all are read."""
        rows = self.rows
        self.fill(rows[self.num_known : self.num_known + count])
        if rows is self.rows:
            self.num_known = min(len(rows), self.num_known + count)
        return self.num_known < len(self.rows)

    def _inside(self, row: Row) -> Inside:
        if row.reward is None:
            return Inside(preview=row.error)
        try:
            return inside(self.body(row)[1])
        except (BadMessage, WarrenError, OSError) as error:
            return Inside(problem=encodable(str(error)))


def segment_sizes(journal: Path) -> dict[str, int]:
    """Bytes of each segment, oldest first; one that is removed meanwhile is left out.

    Raises:
        OSError: The folder may not be looked into.
    """
    sizes = {}
    for path in sorted(journal.glob("*.journal")):
        with suppress(FileNotFoundError):
            sizes[path.name] = path.stat().st_size
    return sizes


def _continues(history: list[Stretch], end: Position) -> bool:
    """Whether what was read up to `end` is still the beginning of the history."""
    own = [stretch for stretch in history if stretch.segment == end.segment]
    return bool(own) and (own[0].limit is None or own[0].limit >= end.offset)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
