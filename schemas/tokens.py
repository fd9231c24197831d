"""The per-token record of a rollout: ids, mask, logprobs and policy versions, all of one length."""

from collections.abc import Iterable
from functools import cached_property
from itertools import pairwise
from typing import Self

import numpy as np
from pydantic import model_validator

from schemas.arrays import FloatArray, Int32s, IntArray, Runs, from_runs
from schemas.base import Frozen

MAX_TOKENS = 4_000_000
"""More than fits a message; run lengths above it are hostile."""

MAX_VERSION = 2**31 - 1
"""What `version_array` holds."""


class Tokens(Frozen):
    """Prompt, sampled, tool and user tokens in order, `T` in all.

    Where the mask is 0 the logprob is 0.0 and the version -1; versions never decrease.
    """

    mask: Runs
    """1 where the policy sampled the token, run-length coded; sums to `T`."""
    versions: Runs
    """Policy version that sampled each token, -1 where nothing was sampled."""
    token_ids: IntArray
    """`int32[T]`"""
    logprobs: FloatArray
    """`float32[T]`: of the distribution that was really sampled."""

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        length = len(self.token_ids)
        for name, runs in (("mask", self.mask), ("versions", self.versions)):
            total = sum([count for _, count in runs])
            if total > MAX_TOKENS or total != length:
                raise ValueError(f"{name} covers {total} tokens, token_ids has {length}")
        if len(self.logprobs) != length:
            raise ValueError(f"logprobs has {len(self.logprobs)} tokens, token_ids has {length}")
        if not {value for value, _ in self.mask} <= {0, 1}:
            raise ValueError("mask holds something other than 0 and 1")
        if length and int(self.token_ids.min()) < 0:
            raise ValueError("token_ids holds a negative id")
        if any(not -1 <= value <= MAX_VERSION for value, _ in self.versions):
            raise ValueError(f"versions holds something outside -1 to {MAX_VERSION}")
        sampled_spans = _spans((value == 1, count) for value, count in self.mask)
        if sampled_spans != _spans((value >= 0, count) for value, count in self.versions):
            raise ValueError("versions must be -1 exactly where mask is 0")
        gaps = _gaps(sampled_spans, length)
        if any(np.count_nonzero(self.logprobs[start:stop]) for start, stop in gaps):
            raise ValueError("logprobs must be 0.0 where mask is 0")
        sampled = [version for version, _ in self.versions if version >= 0]
        if any(later < earlier for earlier, later in pairwise(sampled)):
            raise ValueError(f"versions decrease: {sampled}")
        return self

    def __len__(self) -> int:
        return len(self.token_ids)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tokens):
            return NotImplemented
        return (
            np.array_equal(self.token_ids, other.token_ids)
            and np.array_equal(self.logprobs, other.logprobs)
            and np.array_equal(self.mask_array, other.mask_array)
            and np.array_equal(self.version_array, other.version_array)
        )

    __hash__ = None  # type: ignore[assignment]

    @cached_property
    def mask_array(self) -> Int32s:
        """`int32[T]`"""
        return from_runs(self.mask)

    @cached_property
    def version_array(self) -> Int32s:
        """`int32[T]`"""
        return from_runs(self.versions)

    @property
    def num_sampled(self) -> int:
        """How many tokens the policy sampled."""
        return sum(count for value, count in self.mask if value)

    @property
    def oldest_version(self) -> int | None:
        """Version of the oldest sampled token, or None when nothing was sampled."""
        return min((version for version, _ in self.versions if version >= 0), default=None)

    @property
    def newest_version(self) -> int | None:
        """Version of the newest sampled token, or None when nothing was sampled."""
        return max((version for version, _ in self.versions if version >= 0), default=None)


def _spans(runs: Iterable[tuple[bool, int]]) -> list[tuple[int, int]]:
    """`[start, stop)` of the runs that are true, those that touch joined."""
    spans: list[tuple[int, int]] = []
    position = 0
    for wanted, count in runs:
        start, position = position, position + count
        if not wanted:
            continue
        if spans and spans[-1][1] == start:
            start = spans.pop()[0]
        spans.append((start, position))
    return spans


def _gaps(spans: list[tuple[int, int]], length: int) -> list[tuple[int, int]]:
    """What lies before, between and behind spans in `[0, length)`."""
    edges = [0, *(edge for span in spans for edge in span), length]
    return [
        (start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True) if start < stop
    ]
