"""The permutation: a bijection for every length, the same everywhere, different by key."""

import itertools
from hashlib import blake2b

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from producers.shuffle import permuted


def image(length, key):
    return [permuted(position, length, key=key) for position in range(length)]


@given(st.integers(1, 400), st.text(max_size=8))
@settings(max_examples=60, deadline=None)
def test_is_a_bijection(length, key):
    assert sorted(image(length, key)) == list(range(length))


def test_is_a_bijection_of_ten_thousand_rows_without_order():
    moved = image(10_000, "0:0:0")
    assert sorted(moved) == list(range(10_000))
    assert sum(a == b for a, b in enumerate(moved)) < 10
    rising = sum(later > earlier for earlier, later in itertools.pairwise(moved))
    assert 4_800 < rising < 5_200  # half of the neighbours, within four standard deviations


def test_first_thousand_positions_cover_the_dataset_evenly():
    tenths = [0] * 10
    for position in range(1_000):
        tenths[permuted(position, 10_000, key="7:0:1") // 1_000] += 1
    assert min(tenths) > 60
    assert max(tenths) < 140


def test_keys_give_different_orders():
    orders = {tuple(image(50, key)) for key in ("0:0:0", "0:0:1", "1:0:0", "0:1:0")}
    assert len(orders) == 4


def reference(position, length, key):
    """The same construction, written as a loop over all values of the domain."""
    half = 1
    while 4**half < length:
        half += 1

    def mix(number, right):
        text = f"{number}:{right}:{key}".encode()
        return int.from_bytes(blake2b(text, digest_size=8).digest(), "little") % 2**half

    while True:
        left, right = divmod(position, 2**half)
        for number in range(8):
            left, right = right, left ^ mix(number, right)
        position = left * 2**half + right
        if position < length:
            return position


@given(st.integers(1, 5_000), st.data())
@settings(max_examples=60, deadline=None)
def test_equals_an_independent_computation(length, data):
    position = data.draw(st.integers(0, length - 1))
    assert permuted(position, length, key="3:0:2") == reference(position, length, "3:0:2")


@pytest.mark.parametrize("position", [-1, 5])
def test_refuses_positions_outside(position):
    with pytest.raises(ValueError, match="5 rows"):
        permuted(position, 5, key="")
