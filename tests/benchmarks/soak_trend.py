"""Whether a quantity grows: values over time in, a slope with its standard error out. No I/O."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

HOUR_S = 3600.0
SIGMAS = 3.0
RELATIVE_BOUND = 0.05
"""Of the mean, an hour: what a quantity of bytes may grow by."""
COUNT_BOUND = 1.0
"""An hour: what a count may grow by."""
_MOST_CORRELATED = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """A straight line through the values of one quantity."""

    first: float
    last: float
    mean: float
    slope: float
    """An hour."""
    error: float
    """Standard error of `slope`."""

    def grows(self, bound: float) -> bool:
        """Whether the slope is above the bound, and above what noise explains."""
        return self.slope > bound and self.slope > SIGMAS * self.error


def trend(times_s: Sequence[float], values: Sequence[float]) -> Trend | None:
    """Least squares; None for fewer than three values or a single moment.

    The residuals of such quantities hang together (a full garbage collection, a segment of a
    log), so that the usual standard error would be too small. It is widened by
    sqrt((1 + r) / (1 - r)), r being their correlation with the sample before: a first-order
    autoregressive series has that much more power at frequency zero than independent values.
    """
    num = len(values)
    if num < 3:
        return None
    middle, mean = sum(times_s) / num, sum(values) / num
    offsets = [t - middle for t in times_s]
    spread = sum(offset * offset for offset in offsets)
    if spread == 0:
        return None
    slope = sum(o * (v - mean) for o, v in zip(offsets, values, strict=True)) / spread
    rests = [v - mean - slope * o for o, v in zip(offsets, values, strict=True)]
    squares = sum(rest * rest for rest in rests)
    error = math.sqrt(squares / (num - 2) / spread)
    if squares > 0:
        pairs = sum(a * b for a, b in pairwise(rests))
        correlated = min(_MOST_CORRELATED, max(0.0, pairs / squares))
        error *= math.sqrt((1 + correlated) / (1 - correlated))
    return Trend(
        first=values[0],
        last=values[-1],
        mean=mean,
        slope=HOUR_S * slope,
        error=HOUR_S * error,
    )
