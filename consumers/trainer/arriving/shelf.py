"""Trajectories of open groups: kept decoded, and read back from the journal when they are not."""

from collections.abc import Iterable

from consumers.trainer.batch.groups import Group
from consumers.trainer.books.group import MemberState, OpenGroup
from infra.amqp.errors import BadMessage
from infra.runs.journal_reader import Entry, JournalCorrupt, JournalReader, Position
from infra.runs.recorded import trajectory_of
from schemas.journal import Arrived
from schemas.work import Trajectory

MAX_TOKENS = 16_000_000
"""Kept in memory at most; the rest is decoded again when its batch comes."""


class Shelf:
    """A cache in front of the journal."""

    def __init__(self, reader: JournalReader) -> None:
        self._reader = reader
        self._kept: dict[Position, Trajectory] = {}
        self._num_tokens = 0

    def keep(self, where: Position, trajectory: Trajectory) -> None:
        """Keep a trajectory that was journaled at `where`, if there is room."""
        size = len(trajectory.rollout.progress.tokens)
        if self._num_tokens + size <= MAX_TOKENS:
            self._kept[where] = trajectory
            self._num_tokens += size

    def forget(self, group: OpenGroup) -> None:
        """Drop the trajectories of a group that has ended."""
        for member in group.members:
            gone = self._kept.pop(member.where, None) if member.where is not None else None
            if gone is not None:
                self._num_tokens -= len(gone.rollout.progress.tokens)

    def groups(self, chosen: Iterable[OpenGroup]) -> list[Group]:
        """The usable members of groups, in the given order; blocking when they must be read.

        Raises:
            JournalCorrupt: A trajectory is not where the ledger says.
        """
        return [
            Group.of(
                group.number,
                [self._get(group.members[i].where) for i in group.indexes(MemberState.USABLE)],
            )
            for group in chosen
        ]

    def _get(self, where: Position | None) -> Trajectory:
        if where is None:
            raise JournalCorrupt("a usable member has no place in the journal")
        kept = self._kept.get(where)
        if kept is not None:
            return kept
        return self.decode(self._reader.entry(where))

    def decode(self, entry: Entry) -> Trajectory:
        """The trajectory in a record.

        Raises:
            RecordCorrupt: It holds none, or not the one that came.
        """
        if not isinstance(entry.record, Arrived):
            raise self._reader.corrupt(entry, "a trajectory should be here")
        try:
            return trajectory_of(entry.record, entry.body)
        except BadMessage as error:
            raise self._reader.corrupt(entry, error.reason) from None
