"""Incarnations only rise, whoever claims them at the same time."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from infra.roles.errors import WarrenError
from infra.runs.incarnation import Incarnations, Superseded


def test_numbers_are_claimed_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        claimed = list(pool.map(lambda _: Incarnations(tmp_path / "i").claim(), range(24)))
    assert sorted(claimed) == list(range(1, 25))
    assert Incarnations(tmp_path / "i").newest() == 24


def test_an_older_one_is_told(tmp_path: Path) -> None:
    incarnations = Incarnations(tmp_path / "i")
    assert incarnations.newest() == 0
    first = incarnations.claim()
    incarnations.check(first)
    second = incarnations.claim()
    incarnations.check(second)
    with pytest.raises(Superseded, match="incarnation 1 was superseded by 2"):
        incarnations.check(first)


def test_an_unwritable_folder_is_named(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(WarrenError, match="cannot write the run folder"):
        Incarnations(blocker / "i").claim()
