"""Which members are lost. Asking again is always safe: it costs tokens, never correctness.

A member is missing when no heartbeat names it and either every work queue has been empty for
`reissue_grace`, or nothing was heard of it for `reissue_after`, doubled each time. While work
flows, at most a tenth of what is open is out for a second time at once: a fleet that is merely
slow is not buried under repetitions.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from consumers.trainer.books.evaluation import OpenEvaluation
from consumers.trainer.books.group import MemberState, OpenGroup
from schemas.headers import Purpose, rollout_id_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A group or an evaluation, and what is not back of it."""

    purpose: Purpose
    number: int
    """Of the group, or the version that is evaluated."""
    attempt: int
    confirmed: bool
    """Whether the broker took its newest credit; if not, it is not lost but on its way."""
    pending: tuple[int, ...]
    """Members that are out."""

    @classmethod
    def of_group(cls, group: OpenGroup) -> "Asked":
        """Members that failed are not out: they are asked for again without waiting."""
        pending = group.indexes(MemberState.PENDING)
        return cls(
            purpose=Purpose.TRAIN,
            number=group.number,
            attempt=group.attempt,
            confirmed=group.confirmed,
            pending=tuple(index for index in pending if not group.members[index].failed),
        )

    @classmethod
    def of_evaluation(cls, evaluation: OpenEvaluation) -> "Asked":
        """Members that failed count as back."""
        return cls(
            purpose=Purpose.EVAL,
            number=evaluation.version,
            attempt=evaluation.attempt,
            confirmed=evaluation.confirmed,
            pending=evaluation.pending,
        )

    def name(self, index: int) -> str:
        """The rollout id of a member."""
        return rollout_id_of(self.purpose, self.number, index)


class Silence:
    """Since when nothing was heard of each pending member, and since when all queues are empty.

    Pure: the caller says what time it is.
    """

    def __init__(self) -> None:
        self._heard: dict[str, float] = {}
        self._again: set[str] = set()
        self._empty_since: float | None = None

    def observe(
        self, asked: Iterable[Asked], *, held: frozenset[str], empty: bool, now: float
    ) -> None:
        """Look at the run: who is pending, who is held, whether every work queue is empty."""
        if not empty:
            self._empty_since = None
        elif self._empty_since is None:
            self._empty_since = now
        pending = {one.name(index) for one in asked for index in one.pending}
        self._heard = {
            name: now if name in held else self._heard.get(name, now) for name in pending
        }
        self._again &= pending - held

    def missing(
        self, asked: Sequence[Asked], *, now: float, grace_s: float, after_s: float
    ) -> list[tuple[Asked, tuple[int, ...]]]:
        """What to ask for again, with the members that are lost."""
        idle = self._empty_since is not None and now - self._empty_since >= grace_s
        lost: list[tuple[Asked, tuple[int, ...]]] = []
        for one in asked:
            patience = grace_s if idle else after_s * 2**one.attempt
            indexes = tuple(
                index
                for index in one.pending
                if one.confirmed and now - self._heard.get(one.name(index), now) >= patience
            )
            if indexes:
                lost.append((one, indexes))
        if idle:
            return lost
        num_out = sum(any(one.name(i) in self._again for i in one.pending) for one in asked)
        return lost[: max(0, max(1, len(asked) // 10) - num_out)]

    def asked(self, one: Asked, indexes: Iterable[int], now: float) -> None:
        """Members were asked for again: their silence begins anew."""
        names = [one.name(index) for index in indexes]
        self._heard.update(dict.fromkeys(names, now))
        self._again.update(names)
        self._empty_since = None
