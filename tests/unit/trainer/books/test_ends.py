"""Two bits a group, checked against a dict."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.trainer.books.ends import End, Ends


@given(st.dictionaries(st.integers(0, 400), st.sampled_from(End)))
def test_ends_are_what_was_written(expected: dict[int, End]) -> None:
    ends = Ends()
    for group, end in expected.items():
        ends.set(group, end)
    for same in (ends, Ends.from_json(json.loads(json.dumps(ends.to_json())))):
        assert {g: same.get(g) for g in range(410) if same.get(g) is not None} == expected
        values = list(expected.values())
        assert same.counts == {end: values.count(end) for end in End}


def test_an_end_is_final() -> None:
    ends = Ends()
    ends.set(3, End.FILTERED)
    with pytest.raises(ValueError, match="group 3 cannot end as trained: it ended as filtered"):
        ends.set(3, End.TRAINED)


def test_a_million_groups_are_small() -> None:
    ends = Ends()
    for group in range(1_000_000):
        ends.set(group, End.TRAINED)
    assert len(ends._bits) + len(ends._known) <= 1_000_000 * 3 // 8 + 8
    assert len(json.dumps(ends.to_json())) < 10_000
