"""Names of the processes that `up` starts, in the order in which it does."""

from infra.roles.context import TRAINER
from schemas.config import RunConfig


def planned(config: RunConfig) -> list[tuple[str, str, int]]:
    """Role, name and number of each; the trainer's name has no number."""
    counts = {
        TRAINER: 1,
        "producer": 1,
        "rollout": config.rollout.workers,
        "reward": config.reward.workers,
    }
    return [
        (role, role if role == TRAINER else f"{role}-{number}", number)
        for role, count in counts.items()
        for number in range(1, count + 1)
    ]
