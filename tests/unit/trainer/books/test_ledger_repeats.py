"""Members that are asked for again: lost ones, failed ones, those of a step that was skipped."""

import json

import pytest

from consumers.trainer.books.ends import End
from consumers.trainer.books.group import MemberState
from consumers.trainer.books.ledger import MAX_CLOSED_EARLY, Ledger, LedgerError
from consumers.trainer.books.totals import MAX_REASONS, OTHER, Totals
from schemas.headers import Purpose
from schemas.journal import (
    Batch,
    Closed,
    Confirmed,
    Issued,
    JournalRecord,
    Late,
    Published,
    Skipped,
)
from tests.unit.trainer.books.ledger_runs import History, arrived, rules


def issued(num_groups: int = 1, **changes: object) -> History:
    """Groups of three, issued and confirmed under version 0."""
    history = History(Ledger(rules(**changes)))
    numbers = tuple(range(num_groups))
    for record in (
        Published(version=0, step=0, fingerprint="f"),
        Issued(groups=numbers),
        Confirmed(groups=numbers),
    ):
        history.note(record)
    return history


def again(group: int, indexes: tuple[int, ...], attempt: int) -> list[JournalRecord]:
    """Asking for members once more."""
    return [
        Issued(groups=(group,), indexes=indexes, attempt=attempt),
        Confirmed(groups=(group,), attempt=attempt),
    ]


def test_replace_asks_for_a_failed_member_once() -> None:
    history = issued(on_failure="replace")
    ledger, (group,) = history.ledger, history.ledger.groups.values()
    history.note(arrived(0, 0, reward=1.0))
    history.note(arrived(0, 1, reward=0.0))
    history.note(arrived(0, 2, reward=None, error="boom"))
    assert ledger.to_replace() == [(0, (2,))] and not ledger.any_ready
    history.note(arrived(0, 2, reward=None, error="the same failure again"))
    assert ledger.totals.late == 1 and ledger.totals.failed == 1
    for record in again(0, (2,), 1):
        history.note(record)
    assert ledger.to_replace() == [] and group.indexes(MemberState.PENDING) == [2]
    history.note(arrived(0, 2, reward=None, error="of the attempt before"))
    assert ledger.totals.late == 2 and group.indexes(MemberState.PENDING) == [2]
    history.note(arrived(0, 2, reward=None, attempt=1, error="boom again"))
    assert group.indexes(MemberState.DEAD) == [2] and ledger.any_ready
    assert (ledger.totals.failed, ledger.totals.replaced, ledger.totals.reissued) == (2, 1, 0)
    assert dict(ledger.totals.asked) == {0: 3, 1: 1}


def test_shrink_goes_on_with_the_siblings() -> None:
    history = issued(on_failure="shrink")
    for index, reward in enumerate([1.0, 0.0, None]):
        history.note(arrived(0, index, reward=reward, error="boom"))
    assert history.ledger.to_replace() == [] and history.ledger.any_ready
    assert (history.ledger.totals.failed, history.ledger.totals.replaced) == (1, 0)


def test_a_trajectory_that_comes_after_all_makes_replacing_needless() -> None:
    history = issued(on_failure="replace")
    history.note(arrived(0, 2, reward=None))
    history.note(arrived(0, 2, reward=1.0))
    assert history.ledger.to_replace() == []
    for index, reward in enumerate([1.0, 0.0]):
        history.note(arrived(0, index, reward=reward))
    assert history.ledger.any_ready
    assert all(not member.failed for member in history.ledger.groups[0].members)


def test_the_failure_of_a_whole_credit_is_replaced_whole() -> None:
    history = issued(on_failure="replace")
    history.note(arrived(0, -1, reward=None, error="unreadable"))
    assert history.ledger.to_replace() == [(0, (0, 1, 2))]
    for record in again(0, (0, 1, 2), 1):
        history.note(record)
    history.note(arrived(0, -1, attempt=1, reward=None, error="unreadable"))
    assert [closed.end for closed in history.ledger.due()] == ["dead"]


def test_what_waits_to_be_replaced_survives_a_checkpoint() -> None:
    history = issued(2, on_failure="replace")
    history.note(arrived(1, 0, reward=None))
    text = json.dumps(history.ledger.to_json())
    ledger = Ledger.from_json(json.loads(text), history.ledger.rules)
    assert ledger.to_replace() == [(1, (0,))]
    assert json.dumps(ledger.to_json()) == text


def test_late_reports_are_counted_where_they_belong() -> None:
    history = issued()
    for purpose in (Purpose.TRAIN, Purpose.EVAL, Purpose.TRAIN):
        history.note(
            Late(type="Trajectory", rollout_id="0.0", group=0, index=0, purpose=purpose, attempt=0)
        )
    assert history.ledger.totals.late == 2


def test_groups_that_were_asked_for_again_are_named_when_they_close() -> None:
    """Somebody may still generate the member that came from elsewhere."""
    num = MAX_CLOSED_EARLY + 3
    history = issued(num)
    for number in range(num):
        if number != 1:
            for record in again(number, (0,), 1):
                history.note(record)
        for index in range(3):
            history.note(arrived(number, index, reward=1.0))
        history.close_due()
    expected = tuple(number for number in range(num) if number != 1)[-MAX_CLOSED_EARLY:]
    assert history.ledger.closed_early == expected
    copy = Ledger.from_json(history.ledger.to_json(), history.ledger.rules)
    assert copy.closed_early == expected


def batch_of_one() -> History:
    """Group 0 is in the batch of step 1."""
    history = issued(2)
    for index in range(3):
        history.note(arrived(0, index, reward=float(index)))
    history.note(
        Batch(
            step=1,
            version=0,
            groups=(0,),
            members=("0.0", "0.1", "0.2"),
            closed=(Closed(group=0, end="trained"),),
            releases=1,
        )
    )
    return history


def test_a_skipped_step_turns_its_groups_dead() -> None:
    history = batch_of_one()
    history.note(Skipped(step=1, groups=(0,), reason="loss is nan"))
    books = history.ledger.books()
    assert (books.trained, books.dead, books.open, books.balanced) == (0, 1, 1, True)
    assert history.ledger.ends.get(0) is End.DEAD
    assert history.ledger.totals.reasons == {("dead", "step 1 was skipped: loss is nan"): 1}
    assert history.ledger.step == 1


def test_only_the_newest_step_can_be_skipped() -> None:
    with pytest.raises(LedgerError, match="step 2 is skipped, the newest is 1"):
        batch_of_one().note(Skipped(step=2, groups=(0,)))


def test_reasons_are_bounded() -> None:
    totals = Totals()
    for number in range(MAX_REASONS + 10):
        totals.explain("dead", f"reason {number}")
        totals.explain("dead", "reason 0")
    assert len(totals.reasons) == MAX_REASONS + 1
    assert totals.reasons["dead", OTHER] == 10
    assert totals.reasons["dead", "reason 0"] == MAX_REASONS + 11
    assert Totals.from_json(json.loads(json.dumps(totals.to_json()))) == totals
