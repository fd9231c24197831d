"""Running totals over every trajectory that counted, trained on or not."""

from collections import Counter
from typing import Any

from schemas.headers import Purpose
from schemas.work import Trajectory


class Tally:
    """Counts of arrivals. Approximate across a crash: a summary, not books."""

    def __init__(self, counts: dict[str, float] | None = None) -> None:
        self._counts: Counter[str] = Counter(counts or {})

    def add(self, trajectory: Trajectory) -> None:
        """Count one trajectory."""
        rollout = trajectory.rollout
        progress = rollout.progress
        cuts = progress.interruptions
        carried = int(progress.tokens.mask_array[: cuts[-1].at_token].sum()) if cuts else 0
        prefix = "eval/" if rollout.purpose is Purpose.EVAL else ""
        self._counts.update(
            {
                f"total/{prefix}trajectories": 1,
                f"total/{prefix}tokens": len(progress.tokens),
                f"total/{prefix}interruptions": len(cuts),
                f"total/{prefix}resumed": int(bool(cuts)),
                f"total/{prefix}resumed_elsewhere": progress.num_resumed_elsewhere,
                f"total/{prefix}tokens_carried": carried,
                f"total/{prefix}tokens_reprefilled": progress.num_reprefilled,
            }
        )

    def count(self, what: str) -> None:
        """Count something else: `late`, `given_up`, ..."""
        self._counts[f"total/{what}"] += 1

    def to_json(self) -> dict[str, Any]:
        """By name."""
        return dict(self._counts)
