"""A journaled trajectory, read from its raw JSON: the schema's own checks are not relied upon."""

import base64
import binascii
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import orjson
import zstandard

from infra.amqp.codec import CHECKSUM, checksum
from schemas.journal import Arrived

_MAX_BYTES = 64 * 1024 * 1024


class Unreadable(Exception):
    """A body in the journal that is not what its header says."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """What the judge needs of a trajectory."""

    rollout_id: str
    reward: float
    num_prompt: int
    num_tokens: int
    versions: tuple[int, ...]
    """Of the sampled tokens, in order, repeated ones once."""

    @property
    def response_length(self) -> int:
        """Everything after the prompt, in tokens."""
        return self.num_tokens - self.num_prompt

    @property
    def decreases(self) -> bool:
        """Whether a token is of an older version than one before it."""
        return any(later < earlier for earlier, later in pairwise(self.versions))


def read(record: Arrived, body: bytes) -> Spoken:
    """Read a trajectory's body.

    Raises:
        Unreadable: Damaged, no trajectory, or of arrays that do not fit together.
    """
    stated = record.headers.get(CHECKSUM)
    if stated != checksum(body):
        raise Unreadable(f"checksum {stated} does not match the body {checksum(body)}")
    try:
        return _spoken(orjson.loads(_plain(record, body)))
    except (ValueError, LookupError, TypeError, zstandard.ZstdError) as error:
        raise Unreadable(f"{type(error).__name__}: {error}") from error


def _plain(record: Arrived, body: bytes) -> bytes:
    if not record.content_encoding:
        return body
    with zstandard.ZstdDecompressor(max_window_size=_MAX_BYTES).stream_reader(body) as reader:
        return bytes(reader.read(_MAX_BYTES))


def _spoken(value: dict[str, Any]) -> Spoken:
    rollout = value["rollout"]
    progress = rollout["progress"]
    tokens = progress["tokens"]
    mask = [value for value, count in tokens["mask"] for _ in range(count)]
    versions = [value for value, count in tokens["versions"] for _ in range(count)]
    lengths = {len(mask), len(versions), *(_items(tokens[k]) for k in ("token_ids", "logprobs"))}
    if len(lengths) != 1:
        raise ValueError(f"arrays of {sorted(lengths)} tokens")
    sampled = [version for version, own in zip(versions, mask, strict=True) if own]
    if any((version < 0) == bool(own) for version, own in zip(versions, mask, strict=True)):
        raise ValueError("a sampled token without a version, or a version without one")
    return Spoken(
        rollout_id=str(rollout["rollout_id"]),
        reward=float(value["reward"]),
        num_prompt=int(progress["num_prompt_tokens"]),
        num_tokens=len(mask),
        versions=tuple(version for version, _ in groupby(sampled)),
    )


def _items(text: str) -> int:
    try:
        return len(base64.b64decode(text, validate=True)) // 4
    except binascii.Error as error:
        raise ValueError(str(error)) from error
