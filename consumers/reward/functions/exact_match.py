"""1 when the answer is the ground truth, letter by letter."""

from consumers.reward.view import RolloutView
from infra.roles.registry import register


@register("reward", "exact_match")
def exact_match(rollout: RolloutView) -> float:
    """1.0 when the last assistant turn equals the ground truth, spaces around both aside.

    Raises:
        ValueError: The row has no ground truth.
    """
    if rollout.ground_truth is None:
        raise ValueError("exact_match needs a ground truth; the row has none")
    return float(rollout.final_text.strip() == str(rollout.ground_truth).strip())
