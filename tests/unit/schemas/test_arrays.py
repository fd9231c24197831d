import base64
import itertools
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from schemas.arrays import FloatArray, IntArray, from_runs, to_runs

INTS = TypeAdapter(IntArray)
FLOATS = TypeAdapter(FloatArray)


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_ints_are_little_endian_base64(values: list[int]) -> None:
    wire = base64.b64encode(struct.pack(f"<{len(values)}i", *values)).decode()
    assert INTS.dump_python(np.array(values, dtype=np.int32)) == wire
    assert INTS.validate_python(wire).tolist() == values


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False)))
def test_floats_are_little_endian_base64(values: list[float]) -> None:
    wire = base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()
    assert FLOATS.dump_python(np.array(values, dtype=np.float32)) == wire
    assert FLOATS.validate_python(wire).tolist() == values


@pytest.mark.parametrize(
    ("wire", "reason"),
    [
        ("AAA", "base64"),
        ("AAAA\n", "base64"),
        ("A A A A ", "base64"),
        ("é", "base64"),
        ("AAA=", "whole number"),
        (17, "expected base64 text"),
        ([[1, 2]], "one dimension"),
    ],
)
def test_malformed_arrays_name_the_reason(wire: object, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        INTS.validate_python(wire)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_floats_are_refused(bad: float) -> None:
    wire = base64.b64encode(struct.pack("<2f", 0.5, bad)).decode()
    with pytest.raises(ValidationError, match="non-finite"):
        FLOATS.validate_python(wire)


def test_views_are_read_only() -> None:
    array = INTS.validate_python([1, 2, 3])
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 9


@given(st.lists(st.integers(-1, 5)))
def test_runs_expand_to_what_was_coded(values: list[int]) -> None:
    runs = to_runs(values)
    assert from_runs(runs).tolist() == values
    assert all(length > 0 for _, length in runs)
    assert all(left[0] != right[0] for left, right in itertools.pairwise(runs))
