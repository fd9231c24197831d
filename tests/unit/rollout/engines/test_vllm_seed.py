from consumers.rollout.engines.base import GenerateRequest
from consumers.rollout.engines.vllm.engine import _generator_seed


def seed_of(num_tokens: int, *, seed: int = 4, name: str = "a") -> int:
    return _generator_seed(
        GenerateRequest(
            request_id=name, token_ids=tuple(range(num_tokens)), max_tokens=8, seed=seed
        )
    )


def test_no_random_number_is_used_again_after_a_cut() -> None:
    """One turn, cut anywhere: each request of it draws from another generator."""
    seeds = [seed_of(length) for length in range(1, 500)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_the_same_cut_draws_the_same_numbers_whoever_resumes_it() -> None:
    assert seed_of(9, name="a") == seed_of(9, name="b")
    assert seed_of(9, seed=4) != seed_of(9, seed=5)
