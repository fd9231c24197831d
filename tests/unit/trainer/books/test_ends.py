"""Two bits a group, checked against a dict."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.trainer.books.ends import End, Ends

MEGABYTE = 1_000_000


def restored(ends: Ends) -> Ends:
    """Through the text of a checkpoint."""
    return Ends.from_json(json.loads(json.dumps(ends.to_json())))


@given(st.dictionaries(st.integers(0, 400), st.sampled_from(End)))
def test_ends_are_what_was_written(expected: dict[int, End]) -> None:
    ends = Ends()
    for group, end in expected.items():
        ends.set(group, end)
    for same in (ends, restored(ends)):
        assert {g: same.get(g) for g in range(410) if same.get(g) is not None} == expected
        values = list(expected.values())
        assert same.counts == {end: values.count(end) for end in End}
        assert same.watermark == min(set(range(402)) - expected.keys())


def test_an_end_is_final() -> None:
    ends = Ends()
    ends.set(3, End.FILTERED)
    with pytest.raises(ValueError, match="group 3 cannot end as trained: it ended as filtered"):
        ends.set(3, End.TRAINED)


def test_only_a_trained_group_can_still_die() -> None:
    ends = Ends()
    for group, end in enumerate([End.TRAINED, End.TRAINED, End.STALE]):
        ends.set(group, end)
    ends.die(0)
    assert [ends.get(group) for group in range(3)] == [End.DEAD, End.TRAINED, End.STALE]
    assert ends.counts == {End.TRAINED: 1, End.FILTERED: 0, End.STALE: 1, End.DEAD: 1}
    for group, state in ((0, "dead"), (2, "stale"), (7, "open")):
        with pytest.raises(ValueError, match=f"group {group} was not trained, it is {state}"):
            ends.die(group)


def test_two_hundred_thousand_groups_in_any_order() -> None:
    """Closed as a run closes them: roughly in order, each within a window, a few stay open."""
    draw = random.Random(3)
    stuck = {5, 77_777, 199_998}
    numbers = [n for n in range(200_000) if n not in stuck]
    numbers.sort(key=lambda number: number + draw.uniform(0, 64))
    expected = {number: draw.choice(_ENDS) for number in numbers}
    ends = Ends()
    for number in numbers:
        ends.set(number, expected[number])
    for same in (ends, restored(ends)):
        assert all(same.get(number) is end for number, end in expected.items())
        assert all(same.get(number) is None for number in stuck)
        assert same.watermark == 5
        counted = list(expected.values())
        assert same.counts == {end: counted.count(end) for end in End}


def test_the_size_follows_the_promise_of_ten_million_in_three_megabytes() -> None:
    """In the worst case, four ends equally frequent; a straggler open all the time."""
    draw, num = random.Random(1), 100_000
    ends = Ends()
    for group in range(1, num):
        ends.set(group, draw.choice(_ENDS))
    assert ends.watermark == 0
    assert ends.size_bytes <= 3 * MEGABYTE * num / 10_000_000
    assert len(json.dumps(ends.to_json())) <= 3 * 2**20 * num / 10_000_000 + 64


_ENDS = list(End)
