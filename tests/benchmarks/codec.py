"""What one long trajectory costs: bytes on the wire, encode, decode and validate."""

import time

import numpy as np

from infra.amqp.codec import decode, encode
from schemas.headers import Purpose
from schemas.tokens import Tokens
from schemas.work import (
    Progress,
    RewardData,
    Rollout,
    RolloutStatus,
    Trajectory,
    Turn,
    TurnKind,
)


def trajectory(num_tokens: int) -> Trajectory:
    """Random ids and logprobs behind a prompt of an eighth of the length."""
    random = np.random.default_rng(0)
    prompt = num_tokens // 8
    logprobs = -random.exponential(1.0, num_tokens).astype(np.float32)
    logprobs[:prompt] = 0.0
    tokens = Tokens(
        mask=((0, prompt), (1, num_tokens - prompt)),
        versions=((-1, prompt), (3, num_tokens - prompt)),
        token_ids=random.integers(0, 150_000, num_tokens),
        logprobs=logprobs,
    )
    turns = (
        Turn(kind=TurnKind.PROMPT, start=0, stop=prompt),
        Turn(kind=TurnKind.ASSISTANT, start=prompt, stop=num_tokens),
    )
    rollout = Rollout(
        rollout_id="1.0",
        group=1,
        index=0,
        purpose=Purpose.TRAIN,
        row=0,
        status=RolloutStatus.COMPLETED,
        finish_reason="stop",
        worker="rollout-1",
        agent="single_turn",
        prompt_hash="",
        reward_data=RewardData(),
        progress=Progress(num_prompt_tokens=prompt, turns=turns, tokens=tokens),
    )
    return Trajectory(reward=1.0, rollout=rollout)


def measure(num_tokens: int, repeats: int = 200) -> dict[str, float]:
    """CPU milliseconds of the best of five, and bytes."""
    value = trajectory(num_tokens)
    raw = len(value.model_dump_json())
    envelope, body = encode(value, app_id="bench/1", correlation_id="1.0", headers={})

    def best(call: object) -> float:
        times = []
        for _ in range(5):
            started = time.process_time()
            for _ in range(repeats):
                call()  # type: ignore[operator]
            times.append((time.process_time() - started) / repeats)
        return 1000 * min(times)

    return {
        "bytes as JSON": raw,
        "bytes on the wire": len(body),
        "encode ms": best(lambda: encode(value, app_id="b", correlation_id="1", headers={})),
        "decode and validate ms": best(lambda: decode(envelope, body, Trajectory)),
    }
