"""What operators want outlives the trainer."""

from pathlib import Path

import pytest

from consumers.trainer.steering.wishes import MAX_OPERATORS, Wishes
from schemas.control import Command, Verb, Wanted


@pytest.mark.parametrize(
    ("verb", "kept"),
    [
        ("pause", Wanted.PAUSED),
        ("drain", Wanted.DRAINING),
        ("resume", Wanted.RUNNING),
        ("stop", Wanted.RUNNING),
    ],
)
def test_a_wish_is_kept_but_a_stop_only_obeyed_once(
    tmp_path: Path, verb: Verb, kept: Wanted
) -> None:
    wishes = Wishes(tmp_path / "wishes.json")
    command = Command(run_id="a", verb=verb, number=3, by="ana")
    assert wishes.obey(command)
    wishes.keep()
    later = Wishes.read(wishes.path)
    assert (later.wanted, later.by) == (kept, "ana")
    assert not later.obey(command)
    assert later.obey(Command(run_id="a", verb="pause", number=1, by="bob"))


def test_not_more_operators_than_anybody_needs(tmp_path: Path) -> None:
    wishes = Wishes(tmp_path / "wishes.json")
    for number in range(2 * MAX_OPERATORS):
        wishes.obey(Command(run_id="a", verb="pause", number=1, by=f"op{number}"))
    assert len(wishes.numbers) == MAX_OPERATORS
    assert f"op{2 * MAX_OPERATORS - 1}" in wishes.numbers


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"wanted": "x", "by": "", "numbers": {}}'])
def test_what_cannot_be_read_is_said_and_pauses_nothing(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "wishes.json"
    path.write_text(text)
    assert Wishes.read(path).wanted is Wanted.RUNNING
    assert "cannot be read" in caplog.text
