"""An open group and its members, as the ledger sees them."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from consumers.trainer.books.ends import End
from infra.runs.journal_reader import Position
from schemas.journal import Closed


class MemberState(StrEnum):
    """What became of one member so far."""

    PENDING = "pending"
    """Asked for, nothing terminal heard."""
    USABLE = "usable"
    """Its trajectory is in the journal."""
    STALE = "stale"
    """Its trajectory came, but is older than allowed."""
    DEAD = "dead"
    """It failed."""


@dataclass(slots=True)
class Member:
    """One rollout of a group."""

    attempt: int
    """Of the newest credit that asked for it."""
    min_version: int
    """No token of a pending member is older."""
    state: MemberState = MemberState.PENDING
    reward: float | None = None
    oldest_version: int | None = None
    """Of the trajectory's sampled tokens."""
    num_tokens: int = 0
    error: str = ""
    """Why it died."""
    where: Position | None = None
    """Of the trajectory in the journal."""
    failed: bool = False
    """It failed and is to be asked for once more (`on_failure = "replace"`)."""
    replaced: bool = False
    """It was asked for once more: its next failure is final."""

    @property
    def bound(self) -> int | None:
        """Lower bound on the version of its tokens; None when it cannot be trained any more."""
        if self.state is MemberState.PENDING:
            return self.min_version
        if self.state is MemberState.USABLE:
            return self.min_version if self.oldest_version is None else self.oldest_version
        return None

    def to_json(self) -> list[Any]:
        """For checkpoints."""
        return [
            self.attempt,
            self.min_version,
            self.state.value,
            self.reward,
            self.oldest_version,
            self.num_tokens,
            self.error,
            None if self.where is None else list(self.where),
            self.failed,
            self.replaced,
        ]

    @classmethod
    def from_json(cls, data: list[Any]) -> "Member":
        """The inverse of `to_json`."""
        attempt, min_version, state, reward, oldest, num_tokens, error, where = data[:8]
        failed, replaced = data[8:]
        return cls(
            attempt=attempt,
            min_version=min_version,
            state=MemberState(state),
            reward=reward,
            oldest_version=oldest,
            num_tokens=num_tokens,
            error=error,
            where=None if where is None else Position(*where),
            failed=failed,
            replaced=replaced,
        )


@dataclass(slots=True)
class OpenGroup:
    """A group that was issued and has not ended."""

    number: int
    members: list[Member]
    min_version: int
    """Of its first credit."""
    attempt: int = 0
    """Of its newest credit."""
    asked: tuple[int, ...] = field(default=())
    """Members that the newest credit asks for."""
    confirmed: bool = False
    """Whether the broker took the newest credit."""
    issued_at: float = 0.0
    """When the newest credit was issued, for people."""

    def indexes(self, state: MemberState) -> list[int]:
        """Members in a state."""
        return [index for index, member in enumerate(self.members) if member.state is state]

    @property
    def bound(self) -> int:
        """Lower bound on the version of any token that may still be trained."""
        bounds = [member.bound for member in self.members]
        return min((bound for bound in bounds if bound is not None), default=self.min_version)

    def verdict(self, *, min_group_size: int, filter_zero_variance: bool) -> Closed | None:
        """How a group without pending members must be closed; None when it can be trained."""
        usable = [m for m in self.members if m.state is MemberState.USABLE]
        if len(usable) >= min_group_size:
            rewards = {member.reward for member in usable}
            if filter_zero_variance and len(rewards) == 1:
                reason = f"all rewards equal {usable[0].reward:g}"
                return Closed(group=self.number, end=End.FILTERED.value, reason=reason)
            return None
        num_stale = len(self.indexes(MemberState.STALE))
        if len(usable) + num_stale >= min_group_size:
            reason = f"{num_stale} of {len(self.members)} members older than allowed"
            return Closed(group=self.number, end=End.STALE.value, reason=reason)
        errors = [member.error for member in self.members if member.state is MemberState.DEAD]
        reason = max(errors, key=errors.count, default="") or "no reason given"
        return Closed(group=self.number, end=End.DEAD.value, reason=reason)

    def to_json(self) -> dict[str, Any]:
        """For checkpoints."""
        return {
            "number": self.number,
            "min_version": self.min_version,
            "attempt": self.attempt,
            "asked": list(self.asked),
            "confirmed": self.confirmed,
            "issued_at": self.issued_at,
            "members": [member.to_json() for member in self.members],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "OpenGroup":
        """The inverse of `to_json`."""
        return cls(
            number=data["number"],
            min_version=data["min_version"],
            attempt=data["attempt"],
            asked=tuple(data["asked"]),
            confirmed=data["confirmed"],
            issued_at=data["issued_at"],
            members=[Member.from_json(member) for member in data["members"]],
        )
