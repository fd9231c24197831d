"""Running totals over every trajectory that counted, trained on or not."""

from collections import Counter
from typing import Any

from schemas.headers import Purpose
from schemas.work import Trajectory


class Tally:
    """Counts of arrivals. Approximate across a crash: a summary, not books."""

    def __init__(self, counts: dict[str, float] | None = None) -> None:
        self._counts: Counter[str] = Counter(counts or {})
        self._rewards: list[float] = []
        self._num_cut = 0

    def add(self, trajectory: Trajectory) -> None:
        """Count one trajectory."""
        rollout = trajectory.rollout
        progress = rollout.progress
        cuts = progress.interruptions
        carried = int(progress.tokens.mask_array[: cuts[-1].at_token].sum()) if cuts else 0
        if rollout.purpose is Purpose.TRAIN:
            self._rewards.append(trajectory.reward)
            self._num_cut += len(cuts)
        prefix = "eval/" if rollout.purpose is Purpose.EVAL else ""
        self._counts.update(
            {
                f"total/{prefix}trajectories": 1,
                f"total/{prefix}tokens": len(progress.tokens),
                f"total/{prefix}interruptions": len(cuts),
                f"total/{prefix}resumed": int(bool(cuts)),
                f"total/{prefix}resumed_elsewhere": progress.num_resumed_elsewhere,
                f"total/{prefix}tokens_carried": carried,
                f"total/{prefix}tokens_prefilled": progress.num_prefilled,
                f"total/{prefix}tokens_cached": progress.num_cached,
                f"total/{prefix}tokens_reprefilled": progress.num_reprefilled,
            }
        )

    def count(self, what: str) -> None:
        """Count something else: `given_up`, ..."""
        self._counts[f"total/{what}"] += 1

    def since_last(self) -> dict[str, float]:
        """Of all that arrived since the last call, trained on or filtered: how many, how often
        they were cut, and their mean reward (absent when nothing came)."""
        rewards, num_cut = self._rewards, self._num_cut
        self._rewards, self._num_cut = [], 0
        values = {"arrived/trajectories": float(len(rewards)), "arrived/interruptions": num_cut}
        if rewards:
            values["arrived/reward"] = sum(rewards) / len(rewards)
        return values

    def to_json(self) -> dict[str, Any]:
        """By name."""
        return dict(self._counts)
