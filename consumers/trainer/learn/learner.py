"""One optimizer step on a batch."""

from collections.abc import Sequence
from dataclasses import dataclass

from consumers.trainer.batch.packing import MicroBatch
from consumers.trainer.learn.policy import Policy
from infra.roles.errors import WarrenError
from schemas.config import RunConfig


class StepFailed(WarrenError):
    """Loss or gradient is not finite; the weights are as before the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a step came to."""

    step: int
    loss: float
    grad_norm: float
    """Before clipping."""
    metrics: dict[str, float]
    """Names begin with `train/`."""
    weights_sha256: str


class Learner:
    """Policy, optimizer and schedule. Blocking: call it in a thread."""

    def __init__(self, config: RunConfig, policy: Policy) -> None:
        self.config = config
        self.policy = policy
        self.step_done = 0

    def step(
        self, micro_batches: Sequence[MicroBatch], step: int, *, version: int | None = None
    ) -> StepResult:
        """Take optimizer step number `step` (from 1) on one batch.

        Raises:
            StepFailed: Loss or gradient is not finite; weights and optimizer are untouched.
        """
        raise NotImplementedError
