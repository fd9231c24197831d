"""What the recipe asks of a rollout: how its tokens are drawn, how many there may be."""

import hashlib
from collections.abc import Sequence

import orjson

from schemas.chat import ChatMessage
from schemas.config import RunConfig
from schemas.headers import Purpose
from schemas.work import Budgets, Sampling


def sampling_of(config: RunConfig, purpose: Purpose) -> Sampling:
    """How tokens are drawn; evaluations have a temperature of their own."""
    rollout = config.rollout
    return Sampling(
        temperature=config.eval.temperature if purpose is Purpose.EVAL else rollout.temperature,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        min_p=rollout.min_p,
        stop=rollout.stop,
        options=rollout.sampling_options,
        seed=config.run.seed,
    )


def budgets_of(config: RunConfig) -> Budgets:
    """Limits of one rollout."""
    rollout = config.rollout
    return Budgets(
        max_prompt_tokens=rollout.max_prompt_tokens,
        max_response_tokens=rollout.max_response_tokens,
        max_turn_tokens=rollout.max_turn_tokens,
        max_turns=rollout.max_turns,
        min_tokens=rollout.min_tokens,
    )


def prompt_hash(messages: Sequence[ChatMessage]) -> str:
    """sha256 (hex) of the messages as JSON with sorted keys and no spaces."""
    plain = [message.model_dump(mode="json") for message in messages]
    return hashlib.sha256(orjson.dumps(plain, option=orjson.OPT_SORT_KEYS)).hexdigest()
