"""A reward function of one's own, in the signature that sees the whole rollout."""

from consumers.reward.view import RolloutView
from infra.recipes.demo.task import is_solved


def exact_sum(rollout: RolloutView) -> dict[str, float]:
    """1 when the tokens behind the calculator's result are the sum and the end, else 0.

    `called` is reported beside it: the share of rollouts in which the calculator was asked.
    """
    return {
        "score": float(is_solved(rollout.response_ids, rollout.ground_truth)),
        "called": float(bool(rollout.tool_results)),
    }
