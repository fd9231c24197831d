"""Seeds of engine requests."""

import hashlib


def request_seed(run_seed: int, rollout_id: str, num_tokens: int) -> int:
    """63 bits that depend on the rollout and the position, never on the worker or the attempt.

    `num_tokens` is where the turn begins, also for the rest of a turn that was cut: an engine
    whose noise is a function of seed and position then goes on with the same noise.
    """
    digest = hashlib.sha256(f"{run_seed}:{rollout_id}:{num_tokens}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
