"""One optimizer step: groups to advantages to micro-batches to new weights. Blocking.

A step that fails is remembered in the run folder: the first failure ends the trainer in a way
that a restart may cure; if the next trainer fails at the same step, a third would too.
"""

import contextlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from consumers.trainer.batch.advantages import advantages_of
from consumers.trainer.batch.groups import Group
from consumers.trainer.batch.packing import MicroBatch, pack
from consumers.trainer.books.ends import End
from consumers.trainer.learn.durable_folders import replace_text
from consumers.trainer.learn.learner import Learner, StepFailed, StepResult
from infra.roles.errors import StepFailedTwice
from schemas.journal import Batch, Closed, Stepped

logger = logging.getLogger(__name__)


def take_step(learner: Learner, groups: Sequence[Group], *, step: int, version: int) -> StepResult:
    """Train on a batch.

    Raises:
        StepFailed: It cannot be done, or the recipe's own objective or advantages raised.
    """
    config = learner.config
    members = [member for group in groups for member in group.members]
    batch: list[MicroBatch] = []
    try:
        advantages = advantages_of(groups, config.algorithm.advantages)
        batch = pack(members, advantages, config.trainer.micro_batch_tokens)
        return learner.step(batch, step, version=version)
    except StepFailed:
        raise
    except Exception as error:  # the boundary to the user's objective and advantages
        what = f"{type(error).__name__}: {error}"
        raise StepFailed(step, batch, what, "the traceback is in the trainer's log") from error


def members_of(groups: Sequence[Group]) -> tuple[str, ...]:
    """Rollout ids of a batch in training order."""
    return tuple(member.rollout.rollout_id for group in groups for member in group.members)


def decided(groups: Sequence[Group], *, step: int, version: int) -> Batch:
    """The record of a batch whose step is to be taken: it ends its groups, each frees a credit.

    Args:
        groups: In training order.
        step: Its number.
        version: Of the weights about to be updated.
    """
    return Batch(
        step=step,
        version=version,
        groups=tuple(group.number for group in groups),
        members=members_of(groups),
        closed=tuple(Closed(group=group.number, end=End.TRAINED.value) for group in groups),
        releases=len(groups),
    )


def stepped(result: StepResult) -> Stepped:
    """The record of a step that was taken."""
    return Stepped(
        step=result.step,
        loss=result.loss,
        grad_norm=result.grad_norm,
        weights_sha256=result.weights_sha256,
        ran_on=result.ran_on,
        logprobs=tuple((rollout_id, len(of) // 2) for rollout_id, of in result.logprobs.items()),
    )


def stepped_body(result: StepResult) -> bytes:
    """What follows that record."""
    return b"".join(result.logprobs.values())


class StepMemory:
    """Which step failed last: `failed_step.json` in the run folder."""

    def __init__(self, root: Path) -> None:
        self._path = root / "failed_step.json"

    def take(
        self,
        learner: Learner,
        groups: Sequence[Group],
        *,
        step: int,
        version: int,
        done_before: bool = False,
    ) -> StepResult:
        """Train on a batch, and remember a failure.

        Args:
            done_before: The journal says that a trainer has taken it: it cannot be given up.

        Raises:
            StepFailed: It failed for the first time.
            StepFailedTwice: A trainer before this one failed at the same step.
        """
        try:
            result = take_step(learner, groups, step=step, version=version)
        except StepFailed as error:
            if self._last().get("step") == step:
                hint = "mend the cause and go on with --resume"
                if done_before:
                    hint += "; it was taken before: is this another machine, with less memory?"
                else:
                    hint += f", or give the step up with --resume --skip-step {step}: its "
                    hint += f"{len(groups)} groups end as dead"
                message = f"step {step} failed again: {error.reason}"
                raise StepFailedTwice(message, hint=hint) from error
            logger.warning(
                "step %d failed, the next trainer tries it once more",
                step,
                exc_info=error.__cause__,
            )
            self._remember(error, groups)
            raise
        if self._last().get("step") == step:
            self.forget()
        return result

    def reason(self, step: int) -> str:
        """Why a step failed, as far as it is remembered."""
        last = self._last()
        return str(last["error"]) if last.get("step") == step else "given up by the operator"

    def forget(self) -> None:
        """The step that failed was taken after all, or given up."""
        self._path.unlink(missing_ok=True)

    def _last(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            values = json.loads(self._path.read_text(encoding="utf-8"))
            if isinstance(values, dict):
                return values
        return {}

    def _remember(self, error: StepFailed, groups: Sequence[Group]) -> None:
        values = {
            "step": error.step,
            "error": error.reason,
            "groups": [group.number for group in groups],
        }
        replace_text(self._path, json.dumps(values) + "\n")
