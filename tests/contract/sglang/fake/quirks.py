"""What SGLang 0.5.23 does that one would not expect. The defaults are what it does."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Quirks:
    """Switches of the fake server; tests turn them while it runs."""

    abort_by_prefix: bool = True
    """An abort takes every request whose id begins with the one that is named."""
    abort_lost_while_paused: bool = True
    """Of a request that came while paused: the abort, and every later one, does nothing."""
    abort_takes_a_step: bool = True
    """A running request samples one more token before it ends."""
    repeats_last_token: bool = True
    """In a stream of deltas, an abort in the queue repeats the last token, beside all logprobs."""
    silent_before_abort: bool = False
    """An abort never ends the request."""
    end_token_unasked: bool = True
    """The model's own end token ends a request, unless no stop token is heeded at all."""
    mask_needs_top_k: bool = True
    """The logprob of what was sampled is told only where top-k is bounded."""
    dies_of_unknown_ids: bool = True
    dies_of_min_p_with_seeds: bool = True
    keep_alive_s: float = 5.0
    """Idle connections are closed."""
    update_s: float = 0.0
    """An update takes so long."""
    pause_poll_s: float = 1.0
    """Pausing by abort looks that rarely whether all is quiet."""
    original_logprobs: bool = False
    """`SGLANG_RETURN_ORIGINAL_LOGPROB`: before temperature."""
    not_flushed: int = 0
    """Updates that change the weights, and answer 400 because the cache was not flushed."""
    refused: int = 0
    """Updates that answer 400 and change nothing."""
    garbled: int = 0
    """Updates that answer 200 and leave a tensor as it was."""
    broken_streams: int = 0
    """Streams that break off after some tokens."""
    dropped: int = 0
    """Requests that are given up with status 503 after some tokens."""
    says: tuple[int, str] | None = None
    """Status and body of every answer, as of a proxy whose server has gone."""
    info: dict[str, Any] = field(default_factory=dict)
    """Other values of `/server_info`."""
