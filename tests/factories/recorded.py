"""A recorded stream of trajectories: what comes back for each credit, whoever asks and when.

Content is a function of group and index alone. Some members fail, some groups have equal rewards,
some lose too many members. Hence what a trainer must make of it can be told without a trainer.
"""

import math
from dataclasses import dataclass
from itertools import count, islice

from schemas.work import Credit, Failure, Trajectory
from tests.factories.world import failure, seed_of, trajectory

FILTERED, DEAD, SHRUNK = "filtered", "dead", "shrunk"


@dataclass(frozen=True)
class RecordedStream:
    """The recording, for one shape of recipe.

    Attributes:
        limit: Groups outstanding at most; bounds how new the tokens of a group can be.
    """

    num_steps: int
    group_size: int = 4
    groups_per_step: int = 2
    limit: int = 3

    def kind(self, group: int) -> str:
        """What is special about a group; empty for most."""
        return {2: FILTERED, 5: DEAD, 1: SHRUNK, 4: SHRUNK}.get(group % 9, "")

    def fails(self, group: int, index: int) -> bool:
        """Whether a member comes back as a failure."""
        return index < {DEAD: self.group_size - 1, SHRUNK: 1}.get(self.kind(group), 0)

    def reward(self, group: int, index: int) -> float:
        """Unequal within a group, unless it is to be filtered."""
        if self.kind(group) == FILTERED:
            return 0.5
        return index / 4 + (seed_of(f"reward {group}.{index}") % 2) / 8

    def version(self, group: int) -> int:
        """A version that is out whenever this group is asked for, as new as can be.

        At most `limit` groups are open, so all but `limit - 1` before this one have ended; those
        that were not lost were trained, and their steps' weights are out before it is asked for.
        """
        lost = sum(self.kind(before) in (FILTERED, DEAD) for before in range(group))
        return max(0, (group + 1 - self.limit - lost) // self.groups_per_step)

    def member(self, credit: Credit, index: int) -> Trajectory:
        """A member of a group to train on."""
        group = credit.group
        reward = self.reward(group, index)
        return trajectory(credit, index, version=self.version(group), reward=reward)

    def evaluation(self, credit: Credit, index: int) -> Trajectory:
        """A member of an evaluation, sampled under the version that is evaluated."""
        reward = (seed_of(f"eval {credit.group}.{index}") % 4) / 4
        return trajectory(credit, index, version=credit.group, reward=reward)

    def failure(self, credit: Credit, index: int) -> Failure:
        """What comes instead of a member that fails."""
        return failure(credit, index, error="ZeroDivisionError: as recorded")

    def batches(self) -> list[tuple[int, ...]]:
        """Groups of each step, when groups come back in order: those that can be trained."""
        able = (group for group in count() if self.kind(group) not in (FILTERED, DEAD))
        return [tuple(islice(able, self.groups_per_step)) for _ in range(self.num_steps)]

    def members(self, group: int) -> tuple[str, ...]:
        """Rollout ids of a trained group."""
        indexes = range(self.group_size)
        return tuple(f"{group}.{index}" for index in indexes if not self.fails(group, index))

    def ends(self) -> dict[int, str]:
        """How every group up to the last trained one ends."""
        ends = dict.fromkeys((group for batch in self.batches() for group in batch), "trained")
        for group in range(max(ends)):
            if group not in ends:
                ends[group] = self.kind(group)
        return ends

    def evaluation_reward(self, version: int, num_asked: int) -> float:
        """Mean over an evaluation's members."""
        rewards = [(seed_of(f"eval {version}.{index}") % 4) / 4 for index in range(num_asked)]
        return math.fsum(rewards) / num_asked
