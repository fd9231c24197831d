"""The two-sample Kolmogorov-Smirnov test (N. V. Smirnov, 1948; asymptotic p with the correction
of M. A. Stephens, 1970, doi:10.1111/j.2517-6161.1970.tb00821.x)."""

import math
from bisect import bisect_right
from collections.abc import Sequence

_TERMS = 100


def distance(one: Sequence[float], other: Sequence[float]) -> float:
    """Largest difference of the two empirical distribution functions, in [0, 1].

    Raises:
        ValueError: A sample is empty.
    """
    if not one or not other:
        raise ValueError("a sample is empty")
    first, second = sorted(one), sorted(other)
    return max(
        abs(bisect_right(first, x) / len(first) - bisect_right(second, x) / len(second))
        for x in {*first, *second}
    )


def p_value(one: Sequence[float], other: Sequence[float]) -> float:
    """Probability of a distance at least that large between two samples of one distribution.

    For samples of discrete values, as lengths are, it is an upper bound: the test is conservative.

    Raises:
        ValueError: A sample is empty.
    """
    found = distance(one, other)
    effective = math.sqrt(len(one) * len(other) / (len(one) + len(other)))
    return survival((effective + 0.12 + 0.11 / effective) * found)


def survival(x: float) -> float:
    """`1 - K(x)` of the Kolmogorov distribution: `2 sum (-1)^(k-1) exp(-2 k^2 x^2)`."""
    if x < 0.2:  # 1 to twelve digits, where the series hardly converges
        return 1.0
    total = math.fsum(
        (1.0 if k % 2 else -1.0) * math.exp(-2 * k * k * x * x) for k in range(1, _TERMS)
    )
    return min(1.0, max(0.0, 2 * total))
