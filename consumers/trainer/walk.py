"""Going through the journal with a learner: each step that was taken is taken again.

    Batch --> gather the same members --> Stepped: train on them
                                      --> Skipped: do not
    everything else --> into the ledger

A trainer that resumes goes this way to the journal's end, `replay step` as far as it is asked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from consumers.trainer.arriving.shelf import Shelf
from consumers.trainer.batch.groups import Group
from consumers.trainer.books.ledger import RULES_CHANGED
from consumers.trainer.learn.learner import Learner, StepResult
from consumers.trainer.saving import SavedState
from consumers.trainer.stepping import members_of
from infra.runs.journal_reader import Entry, JournalCorrupt
from schemas.headers import Purpose
from schemas.journal import Arrived, Batch, GroupsClosed, Opened, Skipped, Stepped


class Take(Protocol):
    """Takes one step; `done_before`: the journal says that it was done."""

    def __call__(
        self,
        learner: Learner,
        groups: Sequence[Group],
        *,
        step: int,
        version: int,
        done_before: bool = False,
    ) -> StepResult: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A step that was taken again."""

    batch: Batch
    groups: list[Group]
    result: StepResult
    recorded: Stepped | None
    """What the journal says of it; None when it was decided and not done."""


class Walk:
    """State of one pass over the journal, from a checkpoint or the run's start.

    Args:
        learner: As it was there.
        shelf: In front of the journal.
        state: What else was known there; brought forward in place.
        take: Takes a step.
    """

    def __init__(self, learner: Learner, shelf: Shelf, state: SavedState, take: Take) -> None:
        self._learner = learner
        self._shelf = shelf
        self._take = take
        self.state = state
        self.waiting: tuple[Batch, list[Group]] | None = None
        """A batch that was decided, as long as its step is not."""

    def apply(self, entry: Entry) -> Taken | None:
        """Take the next record; returns the step that it is about, if that was taken again.

        Raises:
            JournalCorrupt: It does not fit to the ones before, or its message is another.
            StepFailed: The step cannot be taken.
        """
        record, state = entry.record, self.state
        taken: Taken | None = None
        match record:
            case Opened():
                if state.run_id and record.run_id != state.run_id:
                    raise JournalCorrupt(
                        f"the journal is of runs {state.run_id} and {record.run_id}"
                    )
                state.run_id = record.run_id
            case Batch():
                self._gather(record)
            case Stepped():
                taken = self.train(record)
                if taken is None or taken.batch.step != record.step:
                    raise JournalCorrupt(f"step {record.step} is in the journal without its batch")
            case Skipped():
                self.skip(record.step)
            case GroupsClosed():
                for closed in record.closed:
                    if closed.group in state.ledger.groups:
                        self._shelf.forget(state.ledger.groups[closed.group])
            case _:
                pass
        state.ledger.apply(record, entry.position)
        state.evaluations.apply(record)
        if isinstance(record, Arrived) and record.reward is not None:
            self._shelve(record, entry)
        return taken

    def train(self, recorded: Stepped | None = None) -> Taken | None:
        """Take the step of the batch that waits, if one does."""
        if self.waiting is None:
            return None
        (batch, groups), self.waiting = self.waiting, None
        result = self._take(
            self._learner,
            groups,
            step=batch.step,
            version=batch.version,
            done_before=recorded is not None,
        )
        return Taken(batch=batch, groups=groups, result=result, recorded=recorded)

    def skip(self, step: int) -> None:
        """Give the waiting batch up."""
        self.waiting, self._learner.step_done = None, step

    def _gather(self, record: Batch) -> None:
        ledger = self.state.ledger
        chosen = [ledger.groups[number] for number in record.groups if number in ledger.groups]
        groups = self._shelf.groups(chosen)
        if members_of(groups) != record.members:
            raise JournalCorrupt(
                f"step {record.step} was trained on {len(record.members)} rollouts, the journal "
                f"before it holds {len(members_of(groups))} of them",
                hint=RULES_CHANGED,
            )
        for group in chosen:
            self._shelf.forget(group)
        self.waiting = record, groups

    def _shelve(self, record: Arrived, entry: Entry) -> None:
        trajectory = self._shelf.decode(entry)
        self.state.tally.add(trajectory)
        if record.purpose is Purpose.TRAIN and record.group in self.state.ledger.groups:
            self._shelf.keep(entry.position, trajectory)
