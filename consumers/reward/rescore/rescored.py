"""Old and new rewards of a rollout, and of many together."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from consumers.reward.pool import Scored
from schemas.headers import Purpose
from schemas.journal import Arrived
from schemas.work import Trajectory

REWARD = "reward"
"""The weighted sum, beside the functions' names."""
MOST_SHOWN = 8
"""Rollouts that are named one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescored:
    """One rollout."""

    rollout_id: str
    group: int
    purpose: Purpose
    end: str
    """As in `completed: stop`."""
    old: Mapping[str, float]
    """By function, and `reward`; empty where the record is damaged."""
    new: Mapping[str, float]
    """The same; empty where there is no score."""
    error: str = ""
    """Why there is none; hostile."""

    @classmethod
    def of(
        cls,
        record: Arrived,
        trajectory: Trajectory | None = None,
        *,
        scored: Scored | None = None,
        error: str = "",
    ) -> Self:
        """Side by side."""
        old = {} if trajectory is None else {**trajectory.rewards, REWARD: trajectory.reward}
        rollout = None if trajectory is None else trajectory.rollout
        return cls(
            rollout_id=record.rollout_id,
            group=record.group,
            purpose=record.purpose,
            end="" if rollout is None else f"{rollout.status}: {rollout.finish_reason}",
            old=old,
            new={} if scored is None else {**scored.rewards, REWARD: scored.reward},
            error=error,
        )

    @property
    def names(self) -> list[str]:
        """Of either, the weighted sum last."""
        return [*(name for name in {**self.old, **self.new} if name != REWARD), REWARD]

    @property
    def change(self) -> float:
        """Of the weighted sum; 0 where there is no score."""
        return self.new[REWARD] - self.old[REWARD] if self.new else 0.0

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "rollout_id": self.rollout_id,
            "purpose": self.purpose.value,
            "old": dict(self.old),
            "new": dict(self.new) or None,
            "error": self.error or None,
        }


@dataclass(slots=True)
class Column:
    """One function's scores, of the rollouts that have a new score."""

    num_old: int = 0
    num_new: int = 0
    num_changed: int = 0
    _old: float = 0.0
    _new: float = 0.0

    def add(self, old: float | None, new: float | None) -> None:
        """Of one rollout; None where the function was not asked."""
        if old is not None:
            self.num_old += 1
            self._old += old
        if new is not None:
            self.num_new += 1
            self._new += new
        self.num_changed += None not in (old, new) and old != new

    @property
    def mean_old(self) -> float | None:
        """None: never asked."""
        return self._old / self.num_old if self.num_old else None

    @property
    def mean_new(self) -> float | None:
        """None: never asked."""
        return self._new / self.num_new if self.num_new else None


@dataclass(slots=True)
class Totals:
    """Of many rollouts."""

    num: int = 0
    columns: dict[str, Column] = field(default_factory=dict)
    """By function, and `reward`."""
    num_failed: int = 0
    failed: list[Rescored] = field(default_factory=list)
    """The first of them."""
    most_changed: list[Rescored] = field(default_factory=list)
    _groups: dict[int, tuple[set[float], set[float]]] = field(default_factory=dict)

    def add(self, rescored: Rescored) -> None:
        """One more."""
        self.num += 1
        if not rescored.new:
            self.num_failed += 1
            self.failed = [*self.failed, rescored][:MOST_SHOWN]
            return
        for name in rescored.names:
            column = self.columns.setdefault(name, Column())
            column.add(rescored.old.get(name), rescored.new.get(name))
        if rescored.change:
            both = [*self.most_changed, rescored]
            self.most_changed = sorted(both, key=lambda one: -abs(one.change))[:MOST_SHOWN]
        if rescored.purpose is Purpose.TRAIN:
            old, new = self._groups.setdefault(rescored.group, (set(), set()))
            old.add(rescored.old[REWARD])
            new.add(rescored.new[REWARD])

    @property
    def groups(self) -> tuple[int, int, int]:
        """Groups to train on; of these, with unequal rewards before, and now: the others teach
        nothing."""
        old = sum(len(old) > 1 for old, _ in self._groups.values())
        new = sum(len(new) > 1 for _, new in self._groups.values())
        return len(self._groups), old, new

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        num_groups, old, new = self.groups
        return {
            "rollouts": self.num,
            "failed": self.num_failed,
            "functions": {
                name: {"old": c.mean_old, "new": c.mean_new, "changed": c.num_changed}
                for name, c in self.columns.items()
            },
            "groups": {"all": num_groups, "unequal_old": old, "unequal_new": new},
        }
