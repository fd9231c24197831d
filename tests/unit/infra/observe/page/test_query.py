"""Filters, sorts and the text search find what they say."""

from pathlib import Path

import pytest

from infra.observe.page.index import Index
from infra.observe.page.query import BadQuery, page_of, select
from infra.observe.page.runs import Run
from infra.observe.page.search import Search
from tests.factories.run_folders import TurnKind, WrittenRun


def ids(run: Run, **query: str) -> list[str]:
    return [row.rollout_id for row in select(run.index, query)]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"cut": "1"}, ["2.1"]),
        ({"tool": "1"}, ["2.1"]),
        ({"kind": "failure"}, ["5.0"]),
        ({"purpose": "eval"}, ["eval2.1", "eval2.0"]),
        ({"status": "truncated"}, ["4.3", "4.2", "4.1", "4.0"]),
        ({"group": "0"}, ["0.3", "0.2", "0.1", "0.0"]),
        ({"end": "filtered", "sort": "oldest"}, ["4.0", "4.1", "4.2", "4.3"]),
        ({"version": "0", "step": "2"}, ["2.1"]),
        ({"min_reward": "0.25", "max_reward": "0.75", "sort": "best"}, ["0.3", "0.2", "0.1"]),
        ({"min_reward": "2"}, []),
    ],
)
def test_filters(run: Run, query: dict[str, str], expected: list[str]) -> None:
    assert ids(run, **query) == expected


def test_sorts(run: Run) -> None:
    assert ids(run, sort="cut")[0] == "2.1"
    assert ids(run, sort="longest")[0] == "3.0"
    assert ids(run, sort="worst")[-1] == "5.0", "what has no reward comes last"
    assert ids(run, sort="best")[0] == "1.1", "ties stay in order of arrival"
    assert ids(run, sort="stale")[0] == "2.1"
    assert ids(run)[0] == "eval2.1"


def test_a_page_lies_within_bounds(run: Run) -> None:
    rows = select(run.index, {})
    assert page_of(rows, {"offset": "20", "limit": "10"}) == (20, rows[20:])
    assert page_of(rows, {"offset": "-5", "limit": "-3"}) == (0, rows[:1])
    with pytest.raises(BadQuery, match="is no number"):
        page_of(rows, {"offset": "inf"})


def found(index: Index, journal: Path, text: str) -> list[str]:
    numbers = Search(index, journal).numbers(text)
    return [row.rollout_id for row in index.rows if row.number in numbers]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ask the TOOL", ["2.1"]),
        ("look_up", ["2.1"]),
        ("no such page", ["2.1"]),
        ("window.hacked", ["3.0"]),
        ('srcdoc="<script>', ["3.0"]),
        ("zerodivision", ["5.0"]),
        ("eval2.1", ["eval2.1"]),
        ("prompt_hash", []),
        ("assistant", []),
    ],
)
def test_search(run: Run, text: str, expected: list[str]) -> None:
    assert found(run.index, run.folder.journal, text) == expected


def test_search_goes_on_where_it_was_and_reads_compressed_bodies(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path)
    index = Index(run.folder.journal)
    search = Search(index, run.folder.journal)
    prompt = (TurnKind.PROMPT, "wer?")
    run.arrive(run.trajectory(0, 0, [prompt, (TurnKind.ASSISTANT, "ÜBER alles")]))
    index.update()
    assert search.numbers("über") == {0}
    long = "filler words " * 8000 + "über"
    run.arrive(run.trajectory(0, 1, [prompt, (TurnKind.ASSISTANT, long)]))
    run.close()
    index.update()
    assert index.rows[1].compressed
    assert search.numbers("über") == {0, 1}
    assert search.numbers("FILLER") == {1}
