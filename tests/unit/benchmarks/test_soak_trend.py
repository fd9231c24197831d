"""The soak's straight lines: against numpy's, against the spread of many series, and on leaks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.benchmarks.soak_trend import HOUR_S, SIGMAS, trend

MOMENTS = [10.0 * n for n in range(324)]


@given(st.lists(st.floats(-1e6, 1e6), min_size=4, max_size=60), st.floats(0.1, 1e3))
def test_the_line_is_numpys(values: list[float], period_s: float) -> None:
    times = [period_s * n for n in range(len(values))]
    slope, level = np.polyfit(times, values, 1)
    line = trend(times, values)
    assert line is not None
    scale = max(1.0, *map(abs, values)) / period_s
    assert line.slope / HOUR_S == pytest.approx(slope, rel=1e-6, abs=1e-9 * scale)
    assert line.mean == pytest.approx(np.mean(values), rel=1e-9, abs=1e-6)
    assert (line.first, line.last) == (values[0], values[-1])
    rests = np.asarray(values) - np.polyval((slope, level), times)
    if np.dot(rests, rests) < 1e-6 * max(1.0, np.dot(values, values)):
        return
    _, covariance = np.polyfit(times, values, 1, cov=True)
    narrow = HOUR_S * np.sqrt(covariance[0, 0])
    assert line.error >= narrow * (1 - 1e-6)
    if np.dot(rests[1:], rests[:-1]) <= 0:
        assert line.error == pytest.approx(narrow, rel=1e-6)


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.9])
def test_the_error_is_the_spread_of_slopes(memory: float) -> None:
    rng = np.random.default_rng(5)
    slopes, errors = [], []
    for _ in range(400):
        value, values = rng.normal() / np.sqrt(1 - memory**2), []
        for _ in MOMENTS:
            value = memory * value + rng.normal()
            values.append(float(value))
        line = trend(MOMENTS, values)
        assert line is not None
        slopes.append(line.slope)
        errors.append(line.error)
    assert np.mean(errors) == pytest.approx(np.std(slopes), rel=0.2)


def test_a_leak_is_seen_through_noise_and_noise_is_no_leak() -> None:
    rng = np.random.default_rng(7)
    noise = rng.normal(0, 2.0, len(MOMENTS))
    leaking = trend(
        MOMENTS, [100 + 10 * t / HOUR_S + e for t, e in zip(MOMENTS, noise, strict=True)]
    )
    level = trend(MOMENTS, [float(100 + e) for e in noise])
    assert leaking is not None and leaking.grows(5.0) and not leaking.grows(20.0)
    assert level is not None and abs(level.slope) < SIGMAS * level.error
    assert not level.grows(0.0)


def test_shrinking_is_not_growing() -> None:
    line = trend(MOMENTS, [1000.0 - t for t in MOMENTS])
    assert line is not None
    assert line.slope == pytest.approx(-HOUR_S)
    assert line.error == pytest.approx(0.0, abs=1e-6)
    assert not line.grows(1.0)


def test_too_little_says_nothing() -> None:
    assert trend([], []) is None
    assert trend([0.0, 10.0], [1.0, 2.0]) is None
    assert trend([5.0, 5.0, 5.0], [1.0, 2.0, 3.0]) is None
