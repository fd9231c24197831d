"""Positions, steps and planes: every stream undoes itself, and refuses what it never makes."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from infra.weights.delta.sparse import (
    Malformed,
    gaps_of,
    planes_of,
    positions_of,
    unzigzag,
    values_of,
    zigzag,
)


@pytest.mark.parametrize(
    ("gap", "stream"),
    [
        (0, [0]),
        (1, [1]),
        (253, [253]),
        (254, [254]),
        (255, [255, 0]),
        (256, [255, 1]),
        (509, [255, 254]),
        (510, [255, 255, 0]),
        (511, [255, 255, 1]),
    ],
)
def test_gaps_around_the_escape(gap, stream):
    assert gaps_of(np.array([gap])).tolist() == stream
    assert positions_of(np.array(stream, np.uint8), 1, gap + 1).tolist() == [gap]
    both = gaps_of(np.array([gap, gap + 1 + gap]))
    assert both.tolist() == stream * 2
    assert positions_of(both, 2, 2 * gap + 2).tolist() == [gap, 2 * gap + 1]


@given(st.sets(st.integers(0, 5000), min_size=1, max_size=300))
def test_positions_come_back(places):
    positions = np.array(sorted(places))
    stream = gaps_of(positions)
    length = int(positions[-1]) + 1
    assert positions_of(stream, len(places), length).tolist() == positions.tolist()
    assert stream.size <= len(places) + length // 255
    with pytest.raises(Malformed, match="beyond"):
        positions_of(stream, len(places), length - 1)


@given(st.lists(st.integers(0, 3) | st.just(255), max_size=12), st.integers(0, 13))
@example([3, 255], 1)
@example([255], 0)
@example([], 0)
def test_any_gaps_give_rising_positions_in_range_or_nothing(stream, count):
    length = 2000
    complete = bool(stream) and stream[-1] != 255
    possible = complete and len([byte for byte in stream if byte != 255]) == count
    try:
        positions = positions_of(np.array(stream, np.uint8), count, length)
    except Malformed:
        assert not possible or sum(stream) + count > length
        return
    assert possible
    assert len(positions) == count
    assert (np.diff(positions) > 0).all()
    assert positions[0] >= 0
    assert positions[-1] < length


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_steps_wrap_around_and_small_ones_are_small(width):
    dtype = np.dtype(f"<u{width}")
    top = int(np.iinfo(dtype).max)
    half = top // 2
    steps = np.array([0, top, 1, top - 1, 2, half, half + 1], dtype)
    assert zigzag(steps).tolist() == [0, 1, 2, 3, 4, top - 1, top]
    assert unzigzag(zigzag(steps)).tolist() == steps.tolist()
    assert zigzag(steps).dtype == dtype


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_planes_come_back(width):
    values = np.random.default_rng(width).integers(0, 256, 7 * width, np.uint8).view(f"<u{width}")
    planes = planes_of(values)
    assert planes.shape == (width, 7)
    assert planes[0].tolist() == (values & 255).tolist()
    assert values_of(list(planes)).tolist() == values.tolist()
