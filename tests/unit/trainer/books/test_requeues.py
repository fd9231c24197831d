"""Dead members that an operator wants back: the books stay balanced, no prompt is left out."""

import json

import pytest

from consumers.trainer.books.balance import Report
from consumers.trainer.books.evaluation import Evaluations
from consumers.trainer.books.group import MemberState
from consumers.trainer.books.ledger import Ledger, LedgerError
from consumers.trainer.books.positions import Positions
from schemas.headers import Purpose
from schemas.journal import Arrived, GroupsClosed, Issued, Published, Requeued
from tests.unit.trainer.books.ledger_runs import History, arrived, rules


def requeued(group: int, index: int, purpose: Purpose = Purpose.TRAIN) -> Requeued:
    return Requeued(
        rollout_id=f"{group}.{index}",
        group=group,
        index=index,
        purpose=purpose,
        letter="l",
        by="ana",
    )


@pytest.fixture
def history() -> History:
    """Group 0 lost a member and waits for two."""
    history = History(Ledger(rules()))
    history.note(Published(version=0, step=0, fingerprint="f"))
    history.note(Issued(groups=(0,)))
    history.note(arrived(0, 1, reward=None, error="boom"))
    return history


def close(history: History) -> None:
    history.note(GroupsClosed(closed=history.ledger.due()))


def test_a_dead_member_of_a_waiting_group_is_asked_for_once_more(history: History) -> None:
    ledger = history.ledger
    assert ledger.requeues(0, 0) is Report.LATE
    assert ledger.requeues(0, 1) is Report.COUNTED
    history.note(requeued(0, 1))
    assert ledger.requeues(0, 1) is Report.LATE
    assert ledger.to_replace() == [(0, (1,))]
    restored = Ledger.from_json(json.loads(json.dumps(ledger.to_json())), ledger.rules)
    assert restored.to_replace() == [(0, (1,))]
    history.note(Issued(groups=(0,), indexes=(1,), attempt=1))
    assert ledger.to_replace() == []
    history.note(arrived(0, 1, attempt=0, reward=None))
    assert ledger.groups[0].members[1].state is MemberState.PENDING
    history.note(arrived(0, 1, attempt=1, reward=None))
    assert ledger.groups[0].members[1].state is MemberState.DEAD
    history.note(requeued(0, -1))
    history.note(Issued(groups=(0,), indexes=(1,), attempt=2))
    history.note(arrived(0, 1, attempt=2, reward=1.0))
    assert ledger.groups[0].members[1].state is MemberState.USABLE
    assert ledger.totals.requeued == 2


def test_a_group_that_waits_for_nobody_is_not_opened_again(history: History) -> None:
    """It may be in the batch that is being decided: its prompt gets another group."""
    ledger = history.ledger
    history.note(arrived(0, 0, reward=1.0))
    history.note(arrived(0, 2, reward=0.0))
    assert len(ledger.ready()) == 1
    history.note(requeued(0, 1))
    assert len(ledger.ready()) == 1 and ledger.positions.wanted == [0]


def test_a_closed_group_gets_one_stand_in_at_a_time(history: History) -> None:
    ledger = history.ledger
    history.note(arrived(0, 0, reward=None))
    history.note(arrived(0, 2, reward=None))
    close(history)
    history.note(requeued(0, 1))
    assert ledger.requeues(0, 2) is Report.LATE
    with pytest.raises(LedgerError):
        history.ledger.apply(requeued(0, 2))
    history.note(Issued(groups=(1,), positions=(0,)))
    history.note(Issued(groups=(2, 3)))
    assert [ledger.positions.of(group) for group in range(5)] == [0, 0, 1, 2, 3]
    assert ledger.requeues(0, 2) is Report.LATE
    for index in range(3):
        history.note(arrived(1, index, reward=None))
    close(history)
    assert ledger.requeues(1, 0) is Report.COUNTED
    history.note(requeued(1, 0))
    assert ledger.requeues(0, 2) is Report.LATE
    restored = Ledger.from_json(json.loads(json.dumps(ledger.to_json())), ledger.rules)
    assert restored.to_json() == ledger.to_json()
    for books in (ledger.books(), restored.books()):
        books.check("here")
        assert (books.issued, books.open, books.dead) == (4, 2, 2)
    restored.apply(Issued(groups=(4,), positions=(0,)))
    assert restored.positions.of(4) == 0 and restored.positions.of(5) == 3


def test_nobody_stands_in_for_what_nobody_wants(history: History) -> None:
    with pytest.raises(LedgerError, match="without a wish"):
        history.ledger.apply(Issued(groups=(1,), positions=(0,)))


@pytest.mark.parametrize(("group", "index"), [(1, 0), (-1, 0), (0, 3), (0, -2)])
def test_what_was_never_issued_cannot_be_requeued(history: History, group: int, index: int) -> None:
    assert history.ledger.requeues(group, index) is Report.UNKNOWN


def test_every_position_is_taken_once_but_for_the_wanted() -> None:
    positions = Positions()
    taken = []
    for group in range(200):
        if positions.wanted and group % 3:
            positions.stand_in(group, positions.wanted[0])
        else:
            taken.append(positions.of(group))
        if group % 7 == 5:
            positions.want(group // 2)
    assert taken == list(range(len(taken)))
    assert Positions.from_json(json.loads(json.dumps(positions.to_json()))).of(150) == (
        positions.of(150)
    )


def test_a_failed_member_of_the_open_evaluation_is_asked_for_once_more() -> None:
    evaluations = Evaluations()
    evaluations.apply(Issued(groups=(3,), indexes=(0, 1), purpose=Purpose.EVAL))
    died = Arrived(
        type="Failure",
        message_id="m",
        rollout_id="eval3.1",
        group=3,
        index=1,
        purpose=Purpose.EVAL,
    )
    assert evaluations.requeues(3, 1) is Report.LATE
    evaluations.apply(died)
    assert evaluations.requeues(2, 1) is Report.UNKNOWN
    assert evaluations.requeues(3, 1) is Report.COUNTED
    evaluations.apply(requeued(3, 1, Purpose.EVAL))
    evaluations = Evaluations.from_json(json.loads(json.dumps(evaluations.to_json())))
    assert evaluations.to_repeat == (1,)
    evaluations.apply(Issued(groups=(3,), indexes=(1,), attempt=1, purpose=Purpose.EVAL))
    assert evaluations.to_repeat == ()
    one = evaluations.open
    assert one is not None and one.pending == (0, 1)
    evaluations.apply(died)
    assert one.pending == (0, 1)
    evaluations.apply(died.model_copy(update={"attempt": 1}))
    assert one.pending == (0,)
