"""A recipe's own reward functions and tool, as users write them on a bad day.

Faults are told by what a rollout is about, so that they hit the same rollouts in every run.
"""

import math
import os
import time
from pathlib import Path

from consumers.reward.view import RolloutView

RAISES, HANGS, GIVES_NAN, ALL_RAISE = 3, 4, 5, 6
"""Groups whose first member, or every member, meets the fault in `faulty`."""
GATE = "WARREN_TEST_GATE"
"""Names a file without which `gated` holds back what belongs to later groups."""
FREE_GROUPS, FREE_STEPS = 6, 2
"""Groups that are never held back, and the steps that are done before others are issued."""


def alternating(rollout: RolloutView) -> float:
    """0, 1, 0, 1, ... by member, so that no group is filtered."""
    return float(int(rollout.rollout_id.rpartition(".")[2]) % 2)


def faulty(rollout: RolloutView) -> float:
    """`alternating`, but for four groups."""
    group, _, index = rollout.rollout_id.partition(".")
    if group == str(ALL_RAISE):
        raise LookupError(f"no score for anybody in group {group}")
    if index == "0":
        if group == str(RAISES):
            return float({}["the answer"])
        if group == str(HANGS):
            time.sleep(3600)
        if group == str(GIVES_NAN):
            return math.nan
    return alternating(rollout)


def gated(rollout: RolloutView) -> float:
    """`alternating`; later groups wait for the gate, and with them the run."""
    gate, group = Path(os.environ[GATE]), rollout.rollout_id.partition(".")[0]
    while group.isdigit() and int(group) >= FREE_GROUPS and not gate.exists():
        time.sleep(0.02)
    return alternating(rollout)


def add(expression: str) -> str:
    """Add two numbers; raises for some, never returns for others.

    Args:
        expression: For example 37+58.
    """
    left, _, right = expression.partition("+")
    if left[-1:] in ("1", "3", "5"):
        raise ArithmeticError(f"no sums with {left}")
    if left[-1:] == "7":
        time.sleep(3600)
    return f"{int(left) + int(right):03d}"


def always_raises(rollout: RolloutView) -> float:
    """For a check."""
    raise LookupError("nothing is ever right")


def never_returns(rollout: RolloutView) -> float:
    """For a check."""
    time.sleep(3600)
    return 0.0
