"""Journal, ledger and evaluations move together: what is written is applied, in the same order.

    note(record) -> commit() -> only now: acknowledge, publish, step

What is in memory may run ahead of the disk by one fsync; what others see never does.
"""

import logging
import time
from typing import NamedTuple

from consumers.trainer.arriving.shelf import Shelf
from consumers.trainer.books.balance import Report
from consumers.trainer.books.evaluation import Evaluations
from consumers.trainer.books.fruitless import Fruitless
from consumers.trainer.books.group import MemberState
from consumers.trainer.books.ledger import Ledger
from consumers.trainer.steering.clock import Bell
from consumers.trainer.steering.fence import Fence
from infra.runs.journal import Journal
from schemas.journal import Arrived, Batch, Closed, GroupsClosed, JournalRecord

logger = logging.getLogger(__name__)


class Failed(NamedTuple):
    """A member that was given up."""

    rollout_id: str
    error: str
    at: float
    """Monotonic."""


class Chronicle:
    """What this trainer knows, durably."""

    def __init__(
        self,
        *,
        journal: Journal,
        ledger: Ledger,
        evaluations: Evaluations,
        fence: Fence,
        shelf: Shelf,
        max_fruitless: int,
    ) -> None:
        self.journal = journal
        self.ledger = ledger
        self.evaluations = evaluations
        self.fence = fence
        self.shelf = shelf
        self.fruitless = Fruitless(max_fruitless)
        self.last_failure: Failed | None = None
        self.changed = Bell()
        """Rings after each change that somebody may wait for."""

    def note(self, record: JournalRecord, body: bytes = b"") -> Report | None:
        """Append a record and apply it; tells what a report came to."""
        where = self.journal.append(record, body)
        closing = record.closed if isinstance(record, Batch | GroupsClosed) else ()
        leaving = [self.ledger.groups.get(closed.group) for closed in closing]
        report = self.ledger.apply(record, where) or self.evaluations.apply(record)
        if isinstance(record, Arrived) and record.reward is None and report is Report.COUNTED:
            self.last_failure = Failed(record.rollout_id, record.error, time.monotonic())
        for group in leaving:
            if group is not None:
                self.shelf.forget(group)
        return report

    async def commit(self) -> None:
        """Return when everything noted is on disk and this trainer is still the newest.

        Raises:
            Superseded: A newer trainer has begun.
            JournalUnwritable: The disk refused.
        """
        self.fence.check()
        await self.journal.commit()
        self.fence.check()
        self.changed.ring()

    def close_due(self) -> tuple[Closed, ...]:
        """Journal the closings that the reports ask for."""
        due = self.ledger.due()
        if due:
            for closed in due:
                self._explain(closed)
            self.note(GroupsClosed(closed=due))
            self.fruitless.add(due)
        if self.ledger.any_ready:
            self.fruitless.reset()
        return due

    def _explain(self, closed: Closed) -> None:
        if closed.end == "filtered":
            return
        group = self.ledger.groups[closed.group]
        logger.warning("group %d ends as %s: %s", closed.group, closed.end, closed.reason)
        for index in group.indexes(MemberState.DEAD):
            error = group.members[index].error
            if error != closed.reason:
                logger.warning("  %d.%d died: %s", group.number, index, error)
