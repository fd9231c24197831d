"""The two-sample test against published quantiles and exact enumeration."""

import itertools
import math
import random

import pytest

from infra.storm.judge.smirnov import distance, p_value, survival


@pytest.mark.parametrize(
    ("x", "p"),
    [(1.2238, 0.10), (1.3581, 0.05), (1.5174, 0.02), (1.6276, 0.01), (1.9495, 0.001)],
)
def test_the_asymptotic_quantiles_are_the_published_ones(x, p):
    """Smirnov's table (Ann. Math. Statist. 19, 1948)."""
    assert survival(x) == pytest.approx(p, rel=2e-3)


def test_it_is_one_at_nothing_and_falls():
    values = [survival(x / 50) for x in range(200)]
    assert values[0] == 1.0
    assert all(0 <= later <= earlier <= 1 for earlier, later in itertools.pairwise(values))
    assert survival(0.2) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize(
    ("one", "other", "d"),
    [
        ([1, 2, 3], [1, 2, 3], 0.0),
        ([1, 2, 3], [4, 5, 6], 1.0),
        ([1, 2, 3, 4], [3, 4, 5, 6], 0.5),
        ([1, 1, 1, 2], [1, 2, 2, 2], 0.5),
        ([5], [1, 2, 3, 9], 0.75),
    ],
)
def test_distances_of_small_samples(one, other, d):
    assert distance(one, other) == distance(other, one) == pytest.approx(d)


def exact(m: int, n: int, d: float) -> float:
    """P(D >= d) without ties: the share of lattice paths from (0, 0) to (m, n) that leave the
    band |i/m - j/n| < d (each interleaving of two samples is a path, all equally likely)."""
    inside = [[0] * (n + 1) for _ in range(m + 1)]
    for i in range(m + 1):
        for j in range(n + 1):
            if abs(i / m - j / n) >= d - 1e-12:
                continue
            below = (inside[i - 1][j] if i else 0) + (inside[i][j - 1] if j else 0)
            inside[i][j] = 1 if i == j == 0 else below
    return 1 - inside[m][n] / math.comb(m + n, m)


def test_the_enumeration_itself():
    """All 20 interleavings of 3 and 3, one by one."""
    count = 0
    for chosen in itertools.combinations(range(6), 3):
        rest = [x for x in range(6) if x not in chosen]
        count += distance(chosen, rest) >= 2 / 3 - 1e-12
    assert exact(3, 3, 2 / 3) == pytest.approx(count / 20)


@pytest.mark.parametrize(("m", "n"), [(40, 40), (60, 90), (200, 150)])
def test_p_is_close_to_the_exact_one(m, n):
    chance = random.Random(m)
    for shift in (0.0, 0.3, 0.6):
        one = [chance.gauss(0, 1) for _ in range(m)]
        other = [chance.gauss(shift, 1) for _ in range(n)]
        p = exact(m, n, distance(one, other))
        assert p_value(one, other) == pytest.approx(p, rel=0.2, abs=2e-4)


def test_equal_samples_have_p_one_and_far_ones_none():
    assert p_value(range(50), range(50)) == 1.0
    assert p_value(range(500), range(300, 800)) < 1e-9


def test_one_distribution_is_rarely_refused():
    """At a level of 5 %, about that often; of lengths, which have ties, no more often."""
    chance = random.Random(1)

    def refused(draw) -> int:
        return sum(
            p_value([draw() for _ in range(80)], [draw() for _ in range(120)]) < 0.05
            for _ in range(400)
        )

    assert 6 <= refused(chance.random) <= 34
    assert refused(lambda: int(chance.expovariate(0.2))) <= 34


def test_an_empty_sample_is_refused():
    with pytest.raises(ValueError, match="empty"):
        p_value([], [1])
