"""Rollouts that no snapshot can express stay on their worker."""

import logging

from consumers.rollout.agents.state import RolloutState

logger = logging.getLogger(__name__)


def pin(state: RolloutState, reason: str) -> None:
    """From now on it is never handed over; says so once."""
    if state.pinned:
        return
    state.pinned = True
    logger.info(
        "%s is pinned to this worker: %s; it crosses weight updates here, is not saved at the "
        "snapshot interval, and starts again from its task if the worker leaves",
        state.rollout_id,
        reason,
    )


def pin_for_options(state: RolloutState) -> None:
    """Pin a rollout whose sampling depends on what the engine saw since the request began."""
    if state.task.sampling.options:
        named = ", ".join(sorted(state.task.sampling.options))
        pin(state, f"sampling options {named} would mean something else after a cut")
