"""Whether a step that was taken again came to the same, and what is said when it did not."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from consumers.trainer.learn.learner import StepResult
from schemas.journal import RanOn, Stepped

LOSS_TOLERANCE = 1e-3
"""Of the loss, absolute: losses of normalised advantages are sums that nearly cancel."""
GRAD_NORM_TOLERANCE = 1e-2
"""Of the gradient norm, relative."""
TOLERANCE = f"loss within {LOSS_TOLERANCE:g}, gradient norm within {GRAD_NORM_TOLERANCE:.0%}"
"""Where other hardware, torch or threads computed: other kernels add up in another order. Training
magnifies that: in the demo, other vector instructions changed the loss by 1e-7 and the gradient
norm by 6e-6 within ten steps of the base, and ten times as much every ten steps. So the tolerance
holds for some twenty steps; and a hash of the weights says nothing."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What comparing came to."""

    equal: bool
    bitwise: bool
    """Equal in every bit."""
    first_difference: str = ""
    """`loss`, `grad_norm` or `weights_sha256`: the first that differs (beyond the tolerance, where
    that applies)."""


def compare(recorded: Stepped, again: StepResult, *, tolerant: bool) -> Verdict:
    """Compare a step with its record.

    Args:
        recorded: From the journal.
        again: What the replay came to.
        tolerant: Something else computed it, here or on the way here.
    """
    for name in ("loss", "grad_norm", "weights_sha256"):
        if getattr(recorded, name) != getattr(again, name):
            if tolerant:
                break
            return Verdict(False, False, name)
    else:
        return Verdict(True, True)
    if not math.isclose(recorded.loss, again.loss, rel_tol=0, abs_tol=LOSS_TOLERANCE):
        return Verdict(False, False, "loss")
    if not math.isclose(recorded.grad_norm, again.grad_norm, rel_tol=GRAD_NORM_TOLERANCE):
        return Verdict(False, False, "grad_norm")
    return Verdict(True, False)


def differences(recorded: RanOn | None, here: RanOn) -> Iterable[str]:
    """What computed a step and is another here, in words."""
    if recorded is None:
        return
    for name, words in (
        ("torch", "torch"),
        ("device", "device"),
        ("num_threads", "torch threads"),
        ("cpu", "CPU"),
    ):
        before, now = getattr(recorded, name), getattr(here, name)
        if before != now:
            yield f"{words} {before}, here {now}"
