"""How a simulated engine behaves: how long things take, how long turns are, what is written.

Whatever is random is a hash of the request's seed and the absolute position, as in `noise.py`: no
generator state exists, so a rollout that was cut goes on as if it had not been, on any worker.
"""

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from pydantic import Field

from consumers.rollout.engines.options import read_engine_options
from schemas.base import Frozen

_GAMMA = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_END, _STOP, _TOKEN, _LATENCY, _LOGPROB, _RADIUS, _ANGLE = range(1, 8)


class Profile(Frozen):
    """`[rollout.engine_options]` of the simulated engine; durations in seconds.

    Sampling options other than the seed and `min_tokens` have no effect, greedy included: nothing
    is computed.
    """

    mean_tokens: float = Field(default=40.0, ge=1)
    """Mean length of a turn that its budget does not end."""
    spread: float = Field(default=0.6, ge=0, le=3)
    """Of the requests' own mean lengths, log-normal: the standard deviation of their logarithm. A
    turn's length is geometric around its request's own mean."""
    prefill_s: float = Field(default=0.01, ge=0)
    """From admission to the first token, for every request."""
    prefill_token_s: float = Field(default=1e-5, ge=0)
    """The same, for each token of the context."""
    token_s: float = Field(default=0.02, gt=0)
    """Mean time between two tokens of a sequence."""
    jitter: float = Field(default=0.3, ge=0, lt=1)
    """Of `token_s`, relative, uniform to both sides."""
    logprob_spread: float = Field(default=0.5, ge=0)
    """Logprobs are that of a uniform distribution and up to this more."""
    load_s: float = Field(default=0.02, ge=0)
    """A swap of weights, in which nothing is sampled."""
    tick_s: float = Field(default=0.05, gt=0)
    """Tokens are handed over this often."""


def read_profile(options: Mapping[str, Any]) -> Profile:
    """The profile in a recipe.

    Raises:
        ConfigError: An unknown key or a value out of range.
    """
    return read_engine_options(Profile, options, engine="simulated")


class Course:
    """Everything that is random about one request, given by its seed.

    Args:
        profile: Of the engine.
        seed: Of the request; any integer.
        stops: Token ids that end the turn; without one, only budgets end it.
        vocab_size: Ids are below it.
    """

    def __init__(
        self, profile: Profile, *, seed: int, stops: frozenset[int], vocab_size: int
    ) -> None:
        self._profile = profile
        self._key = mixed(seed & _MASK)
        self._stops = sorted(stop for stop in stops if 0 <= stop < vocab_size)
        self._num_plain = max(1, vocab_size - len(self._stops))
        self._uniform = -math.log(vocab_size)

    @cached_property
    def hazard(self) -> float:
        """Probability that a token is the last. The same at every position, so that the length
        does not depend on where the request begins, only on the seed."""
        spread = self._profile.spread
        radius = math.sqrt(-2 * math.log(self._unit(0, _RADIUS)))
        normal = radius * math.cos(2 * math.pi * self._unit(0, _ANGLE))
        mean = self._profile.mean_tokens * math.exp(spread * normal - spread * spread / 2)
        return 1 / max(1.0, mean)

    def token(self, position: int, version: int, *, may_end: bool = True) -> int:
        """The token at an absolute position. Whether it ends the turn, and with which stop token,
        does not depend on the version; which token it otherwise is does."""
        if may_end and self._stops and self._unit(position, _END) < self.hazard:
            return self._stops[self._bits(position, _STOP) % len(self._stops)]
        drawn = self._bits(position, _TOKEN, version) % self._num_plain
        for stop in self._stops:
            drawn += drawn >= stop
        return drawn

    def logprob(self, position: int, version: int) -> float:
        """Of that token; negative and finite."""
        unit = self._bits(position, _LOGPROB, version) / (1 << 64)
        return min(-1e-6, self._uniform + self._profile.logprob_spread * unit)

    def latency_s(self, position: int) -> float:
        """Between the token at a position and the one before it."""
        around = 2 * self._unit(position, _LATENCY) - 1
        return self._profile.token_s * (1 + self._profile.jitter * around)

    def _unit(self, position: int, what: int) -> float:
        """In (0, 1)."""
        return ((self._bits(position, what) >> 12) + 0.5) * 2.0**-52

    def _bits(self, position: int, what: int, version: int = 0) -> int:
        inner = mixed((self._key + position * _GAMMA) & _MASK)
        return mixed((inner ^ what * _GAMMA ^ (version << 20)) & _MASK)


def mixed(value: int) -> int:
    """SplitMix64's output function (Steele, Lea and Flood, 2014, doi:10.1145/2660193.2660195)
    at a state of 64 bits."""
    value = (value + _GAMMA) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
