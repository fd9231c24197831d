"""What a lost group is explained with: its reason once, and only the errors that differ."""

import logging
from pathlib import Path

import pytest

from consumers.trainer.arriving.chronicle import Chronicle
from consumers.trainer.arriving.shelf import Shelf
from consumers.trainer.books.evaluation import Evaluations
from consumers.trainer.books.ledger import Ledger
from consumers.trainer.steering.fence import Fence
from infra.runs.incarnation import Incarnations
from infra.runs.journal import Journal
from infra.runs.journal_reader import JournalReader
from schemas.journal import Confirmed, Issued, Opened
from tests.unit.trainer.books.ledger_runs import arrived, rules


@pytest.fixture
def chronicle(tmp_path: Path) -> Chronicle:
    """Of groups of three, two of them needed."""
    fence = Fence(Incarnations(tmp_path / "incarnations"))
    opened = Opened(run_id="r", incarnation=fence.incarnation, step=0)
    return Chronicle(
        journal=Journal(tmp_path / "journal", opened),
        ledger=Ledger(rules()),
        evaluations=Evaluations(),
        fence=fence,
        shelf=Shelf(JournalReader(tmp_path / "journal")),
        max_fruitless=9,
    )


def test_members_that_died_of_the_reason_are_not_listed_again(
    chronicle: Chronicle, caplog: pytest.LogCaptureFixture
) -> None:
    chronicle.note(Issued(groups=(0,)))
    chronicle.note(Confirmed(groups=(0,)))
    for index, error in enumerate(["boom", "out of memory", "boom"]):
        chronicle.note(arrived(0, index, reward=None, error=error))
    with caplog.at_level(logging.WARNING):
        (closed,) = chronicle.close_due()
    assert (closed.end, closed.reason) == ("dead", "boom")
    said = [record.getMessage() for record in caplog.records]
    assert said == ["group 0 ends as dead: boom", "  0.1 died: out of memory"]
