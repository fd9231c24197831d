"""What travels in AMQP headers beside every data message: enough to close a member of a group
even when its body cannot be read."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Self

from pydantic import Field

from schemas.base import Count, Frozen

REPLAY = "replay"
"""Header of every replayed message, and of whatever comes of one. No ledger counts a message that
has it, whatever its value."""


class Purpose(StrEnum):
    """What a rollout is for."""

    TRAIN = "train"
    """Its trajectory may be trained on."""
    EVAL = "eval"
    """Held-out: scored and reported, never trained on."""


class Headers(Frozen):
    """Flat headers of a data message; `checksum` is added by the codec."""

    run_id: str
    """Drawn when a run first starts; messages of any other run are dead letters."""
    purpose: Purpose = Purpose.TRAIN
    group: Count
    """Number of the group's credit; for an evaluation, the evaluated version."""
    index: Count = 0
    """Member of the group."""
    rollout_id: str = Field(default="", max_length=64, pattern=r"^[A-Za-z0-9._-]*$")
    """Empty for a credit."""
    attempt: Count = 0
    """Of the credit: how often this member was issued before."""
    min_version: Count = 0
    """A worker that serves less keeps the message until it has swapped."""
    returns: Count = 0
    """Times the rollout came back without progress (infrastructure budget)."""
    returns_total: Count = 0
    """Times the rollout came back at all; never reset."""
    data_attempts: Count = 0
    """Times it failed by its own content (data budget)."""
    replay: str = Field(default="", max_length=32, pattern=r"^[A-Za-z0-9._-]+$")
    """The replay that it belongs to; empty for what is live."""

    @property
    def name(self) -> str:
        """The rollout, told apart from its replays: `7.3`, and `7.3@r1b2c3` in a replay. Who holds
        rollouts knows them by it, and message ids are made of it."""
        return f"{self.rollout_id}@{self.replay}" if self.replay else self.rollout_id

    def to_amqp(self) -> dict[str, str | int]:
        """As an AMQP header table, without what only repeats a default: each entry is written
        and read by every hop, and by the broker for the recording."""
        return {
            key: str(value) if isinstance(value, str) else value
            for key, value in self.__dict__.items()
            if value != _DEFAULTS[key]
        }

    @classmethod
    def from_amqp(cls, headers: Mapping[str, object]) -> Self:
        """Read a header table, ignoring headers that are not ours.

        Raises:
            pydantic.ValidationError: A header of ours is missing or malformed.
        """
        return cls.model_validate({k: v for k, v in headers.items() if k in HEADER_NAMES})


def rollout_id_of(purpose: Purpose, group: int, index: int) -> str:
    """The id of a member, the same in every attempt: `7.3`; in the evaluation of a version,
    `eval7.3`."""
    return f"eval{group}.{index}" if purpose is Purpose.EVAL else f"{group}.{index}"


_DEFAULTS = {name: field.default for name, field in Headers.model_fields.items()}
HEADER_NAMES = frozenset(_DEFAULTS)
"""Of the headers that are ours, without the codec's."""
