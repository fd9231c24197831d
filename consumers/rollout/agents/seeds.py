"""Seeds of engine requests."""

import hashlib


def request_seed(run_seed: int, rollout_id: str, num_tokens: int) -> int:
    """63 bits that depend on the rollout and the position, never on the worker or the attempt."""
    digest = hashlib.sha256(f"{run_seed}:{rollout_id}:{num_tokens}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
