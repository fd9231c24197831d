"""One optimizer step: groups to advantages to micro-batches to new weights. Blocking."""

import logging
from collections.abc import Sequence

from consumers.trainer.batch.advantages import advantages_of
from consumers.trainer.batch.groups import Group
from consumers.trainer.batch.packing import pack
from consumers.trainer.learn.learner import Learner, StepFailed, StepResult

logger = logging.getLogger(__name__)


def take_step(learner: Learner, groups: Sequence[Group], *, step: int, version: int) -> StepResult:
    """Train on a batch; once more if it fails.

    Raises:
        StepFailed: It failed twice.
    """
    config = learner.config
    members = [member for group in groups for member in group.members]
    advantages = advantages_of(groups, config.algorithm.advantages)
    batch = pack(members, advantages, config.trainer.micro_batch_tokens)
    try:
        return learner.step(batch, step, version=version)
    except StepFailed as error:
        logger.warning("%s; trying once more", error)
        return learner.step(batch, step, version=version)


def members_of(groups: Sequence[Group]) -> tuple[str, ...]:
    """Rollout ids of a batch in training order."""
    return tuple(member.rollout.rollout_id for group in groups for member in group.members)
