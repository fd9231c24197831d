"""The ledger against its rules, and against random histories."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.trainer.books.balance import Report
from consumers.trainer.books.group import MemberState
from consumers.trainer.books.ledger import Ledger, LedgerError
from infra.roles.errors import BooksDoNotBalance
from schemas.journal import Batch, Closed, Confirmed, GroupsClosed, Issued, Published
from tests.unit.trainer.books.ledger_runs import GROUP_SIZE, History, actions, arrived, rules


def issued(**changes: object) -> History:
    """One group of three, issued and confirmed under version 0."""
    history = History(Ledger(rules(**changes)))
    history.note(Published(version=0, step=0, fingerprint="f"))
    history.note(Issued(groups=(0,)))
    history.note(Confirmed(groups=(0,)))
    return history


@pytest.mark.parametrize(
    ("rewards", "end"),
    [
        ([1.0, 0.0, 1.0], None),
        ([1.0, None, 0.0], None),
        ([1.0, 1.0, 1.0], "filtered"),
        ([0.0, None, 0.0], "filtered"),
        ([1.0, None, None], "dead"),
        ([None, None, None], "dead"),
    ],
)
def test_rewards_decide_the_end(rewards: list[float | None], end: str | None) -> None:
    history = issued()
    for index, reward in enumerate(rewards):
        assert history.ledger.due() == ()
        history.note(arrived(0, index, reward=reward, error="boom"))
    due = history.ledger.due()
    assert [closed.end for closed in due] == ([end] if end else [])
    assert len(history.ledger.ready()) == (0 if end else 1)
    if end == "dead":
        assert due[0].reason == "boom"


@pytest.mark.parametrize(
    ("oldest", "end"),
    [([0, 0, 0], "stale"), ([0, 2, 2], None), ([0, 0, 2], "stale"), ([1, 1, 1], None)],
)
def test_staleness_takes_members_on_arrival(oldest: list[int], end: str | None) -> None:
    """At version 2 and lag 1, tokens of version 0 are too old; two members are needed."""
    history = issued()
    history.note(Published(version=2, step=0, fingerprint="f"))
    for index, version in enumerate(oldest):
        history.note(arrived(0, index, reward=float(index), oldest=version))
    assert [closed.end for closed in history.ledger.due()] == ([end] if end else [])


def test_a_publication_makes_waiting_members_stale() -> None:
    history = issued()
    for index in range(3):
        history.note(arrived(0, index, reward=float(index), oldest=0))
    assert history.ledger.ready()
    history.note(Published(version=1, step=0, fingerprint="f"))
    assert history.ledger.ready()
    history.note(Published(version=2, step=0, fingerprint="f"))
    assert [closed.end for closed in history.ledger.due()] == ["stale"]


@pytest.mark.parametrize("on_stale", ["wait", "train"])
def test_only_drop_drops(on_stale: str) -> None:
    history = issued(on_stale=on_stale)
    history.note(Published(version=9, step=0, fingerprint="f"))
    for index in range(3):
        history.note(arrived(0, index, reward=float(index), oldest=0))
    assert len(history.ledger.ready()) == 1


def test_dead_and_not_stale_when_failures_took_the_last_needed_one() -> None:
    """One stale and two dead of three: with the stale one there would still be too few."""
    history = issued()
    history.note(Published(version=2, step=0, fingerprint="f"))
    history.note(arrived(0, 0, reward=1.0, oldest=0))
    history.note(arrived(0, 1, reward=None))
    history.note(arrived(0, 2, reward=None))
    assert [closed.end for closed in history.ledger.due()] == ["dead"]


def test_the_first_report_decides_and_later_ones_are_late() -> None:
    history = issued()
    ledger = history.ledger
    assert ledger.apply(arrived(0, 0, reward=None)) is Report.COUNTED
    assert ledger.apply(arrived(0, 0, reward=1.0)) is Report.LATE
    assert ledger.groups[0].members[0].state is MemberState.DEAD
    assert ledger.apply(arrived(0, 1, reward=1.0)) is Report.COUNTED
    assert ledger.apply(arrived(0, 1, reward=0.0)) is Report.LATE
    assert ledger.groups[0].members[1].reward == 1.0
    assert ledger.totals.late == 2


def test_a_failure_counts_for_the_current_attempt_and_a_trajectory_for_any() -> None:
    history = issued()
    ledger = history.ledger
    history.note(Issued(groups=(0,), indexes=(0, 1), attempt=1))
    assert ledger.apply(arrived(0, 0, reward=None, attempt=0)) is Report.LATE
    assert ledger.apply(arrived(0, 1, reward=1.0, attempt=0)) is Report.COUNTED
    assert ledger.apply(arrived(0, 2, reward=None, attempt=0)) is Report.COUNTED
    assert ledger.apply(arrived(0, 0, reward=None, attempt=1)) is Report.COUNTED


def test_the_failure_of_a_credit_closes_its_members() -> None:
    history = issued()
    history.note(arrived(0, 0, reward=1.0))
    history.note(arrived(0, -1, reward=None, error="row 3 has no prompt"))
    assert history.ledger.due()[0] == Closed(group=0, end="dead", reason="row 3 has no prompt")


@pytest.mark.parametrize(("group", "index"), [(1, 0), (-1, 0), (0, 3), (7, 0)])
def test_what_was_never_issued_is_refused(group: int, index: int) -> None:
    ledger = issued().ledger
    before = ledger.to_json()
    assert ledger.expects(group, index) is Report.UNKNOWN
    assert ledger.apply(arrived(group, index)) is Report.UNKNOWN
    assert ledger.to_json() == before


def test_contradictions_are_refused() -> None:
    history = issued()
    ledger = history.ledger
    with pytest.raises(LedgerError, match="the next is 1"):
        ledger.apply(Issued(groups=(5,)))
    with pytest.raises(LedgerError, match="not open"):
        ledger.apply(GroupsClosed(closed=(Closed(group=4, end="dead"),)))
    with pytest.raises(LedgerError, match="not ready"):
        ledger.apply(Batch(step=1, version=0, groups=(0,), members=(), closed=(), releases=1))
    with pytest.raises(LedgerError, match="published after"):
        ledger.apply(Published(version=0, step=0, fingerprint="f"))


def test_batches_take_the_oldest_first() -> None:
    history = History(Ledger(rules(on_stale="wait")))
    history.note(Published(version=3, step=0, fingerprint="f"))
    history.note(Issued(groups=(0, 1, 2), min_version=2))
    for group, oldest in ((2, 2), (0, 3), (1, 2)):
        for index in range(GROUP_SIZE):
            history.note(arrived(group, index, reward=float(index), oldest=oldest))
    assert [group.number for group in history.ledger.ready()] == [1, 2, 0]


def test_books_that_do_not_balance_name_the_difference() -> None:
    ledger = issued().ledger
    ledger.num_issued = 3
    with pytest.raises(BooksDoNotBalance, match=r"3 groups issued, 1 accounted for .\+2 missing"):
        ledger.books().check("at step 4")


@settings(max_examples=300, deadline=None)
@given(actions, st.sampled_from(["shrink", "replace"]))
def test_any_history_balances_and_ends_each_group_once(
    steps: list,  # type: ignore[type-arg]
    on_failure: str,
) -> None:
    """An independent count over the records agrees with the ledger after every action."""
    history = History(Ledger(rules(on_failure=on_failure)))
    for action in steps:
        history.act(action)
        books = history.ledger.books()
        assert books.balanced
        ends: dict[int, str] = {}
        num_issued = 0
        for record in history.records:
            if isinstance(record, Issued) and record.attempt == 0:
                num_issued += len(record.groups)
            for closed in getattr(record, "closed", ()):
                assert closed.group not in ends
                ends[closed.group] = closed.end
        counts = [list(ends.values()).count(e) for e in ("trained", "filtered", "stale", "dead")]
        assert counts == [books.trained, books.filtered, books.stale, books.dead]
        assert books.issued == num_issued
        assert books.open == num_issued - len(ends)


@settings(max_examples=150, deadline=None)
@given(actions, st.sampled_from(["shrink", "replace"]))
def test_every_prefix_of_the_journal_gives_the_same_ledger(
    steps: list,  # type: ignore[type-arg]
    on_failure: str,
) -> None:
    """Applied again from the start, or from a checkpoint in the middle, it is equal at the end."""
    from infra.runs.journal_reader import Position

    history = History(Ledger(rules(on_failure=on_failure)))
    for action in steps:
        history.act(action)
    target = history.ledger.to_json()
    for cut in {0, len(history.records) // 2, len(history.records)}:
        ledger = Ledger(rules(on_failure=on_failure))
        for number, record in enumerate(history.records, start=1):
            ledger.apply(record, Position("s", number))
            if number == cut:
                ledger = Ledger.from_json(
                    json.loads(json.dumps(ledger.to_json())), rules(on_failure=on_failure)
                )
                assert ledger.books().balanced
        assert ledger.to_json() == target
