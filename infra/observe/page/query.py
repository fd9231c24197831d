"""Which rollouts, in which order: the words of the page's addresses.

purpose=train|eval  kind=trajectory|failure  end=trained|filtered|...  step=  group=
version= (sampled under)  status=completed|truncated  min_reward=  max_reward=
cut=1 (interrupted)  tool=1 (called one)  q=text  sort=  offset=  limit=
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from infra.observe.page.facts import Inside, Row
from infra.observe.page.index import Index

T = TypeVar("T")

MAX_LIMIT = 500
_NOTHING = Inside()

SORTS: dict[str, tuple[Callable[[Row], Any], bool]] = {
    "newest": (lambda row: row.number, True),
    "oldest": (lambda row: row.number, False),
    "best": (lambda row: row.reward, True),
    "worst": (lambda row: row.reward, False),
    "stale": (lambda row: row.staleness, True),
    "cut": (lambda row: _inside(row).interruptions, True),
    "longest": (lambda row: row.num_tokens, True),
    "shortest": (lambda row: row.num_tokens, False),
    "slowest": (lambda row: _inside(row).seconds, True),
    "turns": (lambda row: _inside(row).turns, True),
    "tools": (lambda row: _inside(row).tool_calls, True),
}
"""Name -> what it sorts by, and whether the largest comes first. Rows without it come last."""

FROM_BODIES = frozenset({"cut", "slowest", "turns", "tools"})
"""Sorts by facts that only bodies tell; so do the filters `cut`, `tool` and `status`."""


class BadQuery(Exception):
    """A word of the address that means nothing; one line."""


def select(index: Index, query: Mapping[str, str]) -> list[Row]:
    """Rows that pass every filter, sorted; ties stay in order of arrival.

    Raises:
        BadQuery: A value is no number, or the sort is unknown.
    """
    name = query.get("sort", "newest")
    if name not in SORTS:
        raise BadQuery(f"sort={name[:40]!r}: one of {', '.join(SORTS)}")
    tests = list(_tests(index, query))
    rows = [row for row in index.rows if all(test(row) for test in tests)]
    key, largest_first = SORTS[name]
    known = [row for row in rows if key(row) is not None]
    known.sort(key=key, reverse=largest_first)
    return known + [row for row in rows if key(row) is None]


def reads_bodies(query: Mapping[str, str]) -> bool:
    """Whether the answer depends on facts that only bodies tell."""
    return query.get("sort") in FROM_BODIES or any(query.get(k) for k in ("cut", "tool", "status"))


def page_of(rows: Sequence[T], query: Mapping[str, str]) -> tuple[int, Sequence[T]]:
    """Offset, and the rows of one page.

    Raises:
        BadQuery: `offset` or `limit` is no number.
    """
    offset = max(0, int(number(query, "offset") or 0))
    limit = min(MAX_LIMIT, max(1, int(number(query, "limit") or 100)))
    return offset, rows[offset : offset + limit]


def number(query: Mapping[str, str], name: str) -> float | None:
    """A finite number of the query; None when it is not there.

    Raises:
        BadQuery: It is none.
    """
    text = query.get(name, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) < 2**53:
        raise BadQuery(f"{name}={text[:40]!r} is no number")
    return value


def _tests(index: Index, query: Mapping[str, str]) -> list[Callable[[Row], bool]]:
    tests: list[Callable[[Row], bool]] = []
    purpose, kind, end = query.get("purpose"), query.get("kind"), query.get("end")
    group, status = query.get("group"), query.get("status")
    if purpose:
        tests.append(lambda row: row.purpose.value == purpose)
    if kind:
        tests.append(lambda row: (row.reward is None) == (kind == "failure"))
    if end:
        tests.append(lambda row: index.groups[row.group].end == end)
    if group:
        tests.append(lambda row: row.group == group)
    if status:
        tests.append(lambda row: _inside(row).status == status)
    if query.get("cut"):
        tests.append(lambda row: _inside(row).interruptions > 0)
    if query.get("tool"):
        tests.append(lambda row: _inside(row).tool_calls > 0)
    return tests + _number_tests(query)


def _number_tests(query: Mapping[str, str]) -> list[Callable[[Row], bool]]:
    tests: list[Callable[[Row], bool]] = []
    if (step := number(query, "step")) is not None:
        tests.append(lambda row: row.step == step)
    if (version := number(query, "version")) is not None:
        tests.append(
            lambda row: (
                row.oldest is not None
                and row.newest is not None
                and row.oldest <= version <= row.newest
            )
        )
    if (low := number(query, "min_reward")) is not None:
        tests.append(lambda row: row.reward is not None and row.reward >= low)
    if (high := number(query, "max_reward")) is not None:
        tests.append(lambda row: row.reward is not None and row.reward <= high)
    return tests


def _inside(row: Row) -> Inside:
    return row.inside or _NOTHING
