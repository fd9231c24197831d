"""One optimizer step on a batch.

for each micro-batch:  forward -> log-probabilities -> objective -> share of the token mean
                       -> backward (gradients add up)
clip the gradient norm -> learning rate of this step -> AdamW -> hash of the weights
"""

import logging
import math
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from consumers.trainer.batch.packing import MicroBatch
from consumers.trainer.learn.diagnostics import UNKNOWN_AGE, Diagnostics
from consumers.trainer.learn.logprobs import sampled_logprobs
from consumers.trainer.learn.losses import Objective, token_mean
from consumers.trainer.learn.optimizer import build_adamw, learning_rate, set_terms
from consumers.trainer.learn.policy import Policy
from consumers.trainer.learn.sampled_from import SampledFrom
from consumers.trainer.replay.machine import ran_on
from infra.roles.errors import WarrenError
from infra.roles.registry import resolve
from schemas.config import RunConfig
from schemas.journal import RanOn

logger = logging.getLogger(__name__)

LOWEST = float(np.finfo(np.float16).min)


class StepFailed(WarrenError):
    """A step could not be taken; weights and optimizer are as before it."""

    def __init__(self, step: int, batch: Sequence[MicroBatch], reason: str, hint: str) -> None:
        ids = [rollout_id for one in batch for rollout_id in one.rollout_ids]
        named = ", ".join(ids[:8]) + (", ..." if len(ids) > 8 else "")
        self.reason = f"{reason} (rollouts {named})"
        super().__init__(f"step {step} failed: {self.reason}", hint=hint)
        self.step = step
        self.rollout_ids = tuple(ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a step came to."""

    step: int
    loss: float
    grad_norm: float
    """Before clipping."""
    metrics: dict[str, float]
    """Names begin with `train/` or `age/`; loss and gradient norm are among them."""
    weights_sha256: str
    """Of the master weights after the step."""
    ran_on: RanOn
    logprobs: dict[str, bytes]
    """Rollout id -> little-endian `float16[N]`: of its sampled tokens, under the weights before the
    step."""


class Learner:
    """Policy, optimizer and schedule. Blocking: call it in a thread, one call at a time.

    On one machine, with one number of threads, equal batches give bit-identical weights.
    """

    def __init__(self, config: RunConfig, policy: Policy) -> None:
        self.policy = policy
        self.step_done = 0
        """Number of the last step that was taken; 0 before the first."""
        self.optimizer = build_adamw(policy.masters().values(), config.trainer)
        self.use(config)
        _be_deterministic(config.run.seed)

    def use(self, config: RunConfig) -> None:
        """Take the steps from here on under another recipe for the same policy.

        Raises:
            ConfigError: There is no such objective.
        """
        self.config = config
        self._sampled_from = SampledFrom.of(config.rollout)
        self._objective: Objective = resolve("objective", config.algorithm.objective)
        set_terms(self.optimizer, config.trainer)

    def step(
        self, micro_batches: Sequence[MicroBatch], step: int, *, version: int | None = None
    ) -> StepResult:
        """Take optimizer step number `step` on one batch.

        Args:
            micro_batches: The whole batch; how it is split does not change the loss.
            step: From 1; above `step_done`. It chooses the learning rate.
            version: Policy version of the current weights, for the tokens' ages.

        Raises:
            StepFailed: Loss or gradient is not finite, nothing was sampled, or memory ran out.
            ValueError: `step` was already taken.
        """
        if step <= self.step_done:
            raise ValueError(f"step {step} after step {self.step_done}")
        algorithm, trainer = self.config.algorithm, self.config.trainer
        diagnostics = Diagnostics(algorithm.clip_low, algorithm.clip_high, algorithm.dual_clip)
        logprobs: dict[str, bytes] = {}
        self.optimizer.zero_grad(set_to_none=True)
        try:
            loss = self._gradients(micro_batches, step, version, diagnostics, logprobs)
            norm = torch.nn.utils.clip_grad_norm_(self.policy.masters().values(), trainer.grad_clip)
            grad_norm = float(norm)
            if not math.isfinite(grad_norm):
                raise StepFailed(step, micro_batches, f"gradient norm is {grad_norm}", _LOOK)
            rate = learning_rate(trainer, step)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.step()
        finally:
            self.optimizer.zero_grad(set_to_none=True)
        self.step_done = step
        metrics = {
            "train/loss": loss,
            "train/grad_norm": grad_norm,
            "train/lr": rate,
            **diagnostics.metrics(),
        }
        return StepResult(
            step=step,
            loss=loss,
            grad_norm=grad_norm,
            metrics=metrics,
            weights_sha256=self.policy.sha256(),
            ran_on=ran_on(self.policy.device),
            logprobs=logprobs,
        )

    def _gradients(
        self,
        micro_batches: Sequence[MicroBatch],
        step: int,
        version: int | None,
        diagnostics: Diagnostics,
        logprobs: dict[str, bytes],
    ) -> float:
        num_sampled = sum(one.num_sampled for one in micro_batches)
        if num_sampled == 0:
            raise StepFailed(step, micro_batches, "the batch has no sampled token", _LOOK)
        loss = 0.0
        for micro_batch in micro_batches:
            if micro_batch.num_sampled == 0:
                continue
            try:
                share = self._backward(micro_batch, num_sampled, version, diagnostics, logprobs)
            except torch.OutOfMemoryError as error:
                raise StepFailed(
                    step, [micro_batch], str(error), "lower trainer.micro_batch_tokens"
                ) from error
            if not math.isfinite(share):
                raise StepFailed(step, [micro_batch], f"loss is {share}", _LOOK)
            loss += share
        return loss

    def _backward(
        self,
        micro_batch: MicroBatch,
        num_sampled: int,
        version: int | None,
        diagnostics: Diagnostics,
        logprobs: dict[str, bytes],
    ) -> float:
        device, algorithm = self.policy.device, self.config.algorithm
        mask_BT = torch.from_numpy(micro_batch.mask).to(device)
        token_ids_BT = torch.from_numpy(micro_batch.token_ids).to(device)
        rollout_N = torch.from_numpy(micro_batch.rollout_logprobs).to(device)[mask_BT]
        advantages_B = torch.from_numpy(micro_batch.advantages).to(device)
        advantages_N = advantages_B.unsqueeze(1).expand_as(mask_BT)[mask_BT]
        withheld = micro_batch.withheld
        withheld_BTW = None if withheld is None else torch.from_numpy(withheld).to(device)
        versions_N = torch.from_numpy(micro_batch.versions).to(device)[mask_BT]
        with self._precision():
            new_N, entropies_N = sampled_logprobs(
                self.policy.model, token_ids_BT, mask_BT, self._sampled_from, withheld_BTW
            )
        loss_N = self._objective(
            new_N,
            rollout_N,
            advantages_N,
            torch.ones_like(new_N, dtype=torch.bool),
            algorithm.clip_low,
            algorithm.clip_high,
            algorithm.dual_clip,
        )
        share = token_mean(loss_N, num_sampled)
        share.backward()  # type: ignore[no-untyped-call]
        ages_N = versions_N * 0 + UNKNOWN_AGE if version is None else version - versions_N
        diagnostics.add(new_N, rollout_N, advantages_N, entropies_N, ages_N)
        logprobs.update(by_rollout(micro_batch, new_N.detach()))
        return float(share.detach())

    def _precision(self) -> AbstractContextManager[object]:
        # Only a GPU gains from bfloat16 products; masters, logits and loss stay float32.
        if self.policy.device.type == "cuda" and self.config.model.dtype == "bfloat16":
            return torch.autocast("cuda", dtype=torch.bfloat16)
        return nullcontext()


_LOOK = (
    "look at these trajectories and at train/ratio_max and train/grad_norm of the steps before; "
    "a lower trainer.lr often helps"
)


def by_rollout(micro_batch: MicroBatch, logprobs_N: Tensor) -> dict[str, bytes]:
    """Logprobs of a micro-batch's sampled tokens, row by row, apart."""
    kept = logprobs_N.clamp(min=LOWEST).to("cpu", torch.float16).numpy().astype("<f2")
    ends = np.cumsum(micro_batch.mask.sum(axis=1))
    rows = (row.tobytes() for row in np.split(kept, ends[:-1]))
    return dict(zip(micro_batch.rollout_ids, rows, strict=True))


def _be_deterministic(seed: int) -> None:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Filling fresh memory costs time and guards only against reading what was never written.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
