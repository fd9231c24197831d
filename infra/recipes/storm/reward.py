"""A reward that differs within a group, and that a model learns to raise within a few steps."""

from typing import Any

from infra.recipes.demo.task import VOCABULARY_SIZE

GRAINS = 8


def lower_half(rollout: Any) -> float:
    """The share of sampled tokens from the lower half of the vocabulary, in eighths: some groups
    have equal rewards, so that some are filtered.

    Args:
        rollout: A `RolloutView`.
    """
    sampled = [token for token, own in zip(rollout.token_ids, rollout.mask, strict=True) if own]
    low = sum(token < VOCABULARY_SIZE // 2 for token in sampled)
    share: float = low / max(1, len(sampled))
    return round(GRAINS * share) / GRAINS
