"""The engine protocol: generate, interrupt at a token, swap weights in place."""

from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from infra.roles.errors import WarrenError
from infra.weights.prepared import PreparedWeights, ServedWeights


class WeightsRefused(WarrenError):
    """Weights that the engine did not take; the old version still serves."""


class EngineFailed(WarrenError):
    """The engine is dead; the worker hands over and leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One assistant turn, or the rest of one.

    `stop_token_ids` end the turn and are part of it. `seed` is of this request alone; an engine
    whose noise is a function of seed and position continues the same sequence after a cut.
    """

    request_id: str
    token_ids: tuple[int, ...]
    """Everything so far."""
    max_tokens: int
    """Tokens to sample at most, positive."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    min_tokens: int = 0
    """Tokens to sample before one of `stop_token_ids` may be; of this request, not of the turn."""
    stop_token_ids: frozenset[int] = frozenset()
    options: Mapping[str, Any] = field(default_factory=dict)
    """The engine's own sampling parameters, by name; see `engines/options.py`."""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenChunk:
    """Tokens as they were sampled; ids and logprobs have equal length."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Of the distribution that was really sampled."""
    policy_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The last item of a stream."""

    reason: Literal["stop", "length", "interrupted"]
    num_cached_tokens: int = 0
    """Of the request's tokens, those whose keys and values came from the engine's prefix cache;
    0 from a request that was never prefilled, and from an engine without such a cache."""


class Engine(Protocol):
    """One model on one or more devices."""

    async def start(self, weights: PreparedWeights) -> None:
        """Load the model.

        Raises:
            WeightsRefused: The weights do not fit the model.
            EngineFailed: The engine does not come up.
        """

    def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk | Finish]:
        """Sample a turn. Closing the iterator early frees the request.

        Raises:
            ValueError: Out-of-vocabulary ids or no room in the context; raised on first use.
            EngineFailed: The engine died.
        """

    async def interrupt(self, request_ids: Collection[str] | None = None) -> None:
        """End streams as `interrupted`, after every token sampled so far; None means all.

        Queued requests end with no token. Finished or unknown ones: nothing happens.
        """

    async def load_weights(self, weights: PreparedWeights) -> None:
        """Swap weights in place and drop cached prefixes; running requests go on under the new.

        Raises:
            WeightsRefused: The old version still serves.
        """

    def serving(self) -> ServedWeights:
        """Version and fingerprint, measured on what the engine holds."""

    async def close(self) -> None:
        """Free everything; leaves no process."""
