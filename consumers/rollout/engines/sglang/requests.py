"""What is sent for a turn."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from consumers.rollout.engines.admission import GREEDY_BELOW, last_length
from consumers.rollout.engines.base import GenerateRequest
from consumers.rollout.engines.sglang.facts import Facts

_BARRED = -1e9
"""Added to a logit, leaves no probability in float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """A part of a turn that is one request to the server.

    SGLang takes `min_new_tokens` only with a tokenizer, which it does not need here. So a minimum
    is a leg of its own, in which the stop tokens are barred. And it knows no stop tokens
    without the model's own end token, so a turn that ends with that one, unasked, has another leg.
    """

    max_tokens: int
    stops_barred: bool = False


def next_leg(request: GenerateRequest, num_sampled: int, *, max_model_len: int) -> Leg | None:
    """The part of a turn that follows so many sampled tokens; None when its budget is used up."""
    budget = last_length(request, max_model_len=max_model_len) - len(request.token_ids)
    budget -= num_sampled
    if budget < 1:
        return None
    barred = min(request.min_tokens - num_sampled, budget) if request.stop_token_ids else 0
    if barred > 0:
        return Leg(max_tokens=barred, stops_barred=True)
    return Leg(max_tokens=budget)


def check_settings(request: GenerateRequest, facts: Facts) -> None:
    """Refuse what this engine understands otherwise than the others, or the server not at all.

    Raises:
        ValueError: With the settings.
    """
    name = f"request {request.request_id}"
    cuts = {"min_p": request.min_p > 0, "top_k": request.top_k > 0, "top_p": request.top_p < 1}
    if sum(cuts.values()) > 1:
        raise ValueError(
            f"{name} has {', '.join(cut for cut, on in cuts.items() if on)}: SGLang takes their "
            "shares of another whole than the trainer and the other engines do"
        )
    if cuts["min_p"] and facts.deterministic:
        raise ValueError(
            f"{name} has min_p {request.min_p}, which would end an SGLang server with "
            "--enable-deterministic-inference"
        )
    if request.options and request.min_tokens:
        raise ValueError(
            f"{name} has min_tokens and {', '.join(request.options)}, which would begin anew after "
            "those tokens"
        )


def is_truncated(request: GenerateRequest, vocab_size: int) -> bool:
    """Whether the distribution that is sampled from is not the whole one."""
    return request.temperature >= GREEDY_BELOW and (
        0 < request.top_k < vocab_size or request.top_p < 1 or request.min_p > 0
    )


def request_body(
    request: GenerateRequest,
    leg: Leg,
    token_ids: Sequence[int],
    *,
    rid: str,
    facts: Facts,
    vocab_size: int,
) -> dict[str, Any]:
    """The JSON of `POST /generate`. Nothing is left to the server's defaults.

    Args:
        request: The turn.
        leg: Which part of it.
        token_ids: All tokens before this part.
        rid: Its id; must be no prefix of another one: SGLang aborts by prefix.
        facts: Of the server.
        vocab_size: Of the model.
    """
    greedy = request.temperature < GREEDY_BELOW
    truncated = is_truncated(request, vocab_size)
    # One row with a top-k makes SGLang's noise belong to ranks in all rows of a batch, no longer
    # to tokens: seeds repeat only if every request has one.
    untruncated = vocab_size if facts.deterministic and not greedy else -1
    sampling: dict[str, Any] = {
        **request.options,
        "max_new_tokens": leg.max_tokens,
        "temperature": 0.0 if greedy else request.temperature,
        "top_k": facts.top_k(request.top_k, vocab_size) if truncated else untruncated,
        "top_p": request.top_p if truncated else 1.0,
        "min_p": request.min_p if truncated else 0.0,
        "stop_token_ids": sorted(request.stop_token_ids),
        "ignore_eos": leg.stops_barred or not request.stop_token_ids,
    }
    if leg.stops_barred:
        sampling["logit_bias"] = {
            str(stop): _BARRED for stop in sorted(request.stop_token_ids) if stop < vocab_size
        }
    if facts.deterministic and not greedy:
        sampling["sampling_seed"] = _signed(request.seed)
    return {
        "rid": rid,
        "input_ids": list(token_ids),
        "sampling_params": sampling,
        "stream": True,
        "return_logprob": True,
        "return_sampling_mask": truncated,
    }


def _signed(seed: int) -> int:
    """SGLang takes 64 bits with a sign."""
    seed &= (1 << 64) - 1
    return seed - (1 << 64) if seed >> 63 else seed
