"""Which groups carry no signal."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def zero_variance(rewards: Sequence[float] | NDArray[np.float64]) -> bool:
    """Whether all rewards of a group are equal, so that every advantage is 0 (DAPO 2503.14476).

    Compared exactly: a standard deviation of equal numbers need not be 0 in floating point.
    """
    values = np.asarray(rewards, dtype=np.float64)
    return values.size == 0 or bool(values.max() == values.min())
