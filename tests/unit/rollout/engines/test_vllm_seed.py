import torch

from consumers.rollout.agents.seeds import request_seed
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


def test_every_prefix_of_every_turn_has_a_generator_of_its_own() -> None:
    seeds = [
        seed_of(turn + cut, seed=request_seed(0, f"{group}.{index}", turn))
        for group in range(40)
        for index in range(4)
        for turn in range(9, 60, 10)
        for cut in range(10)
    ]
    assert len(set(seeds)) == len(seeds) == 9600


def test_their_random_numbers_do_not_overlap() -> None:
    """Of one generator's numbers, no three in a row are three in a row of another's."""
    seen: set[bytes] = set()
    count, draws = 300, 200
    for length in range(1, count + 1):
        generator = torch.Generator().manual_seed(seed_of(length))
        drawn = torch.empty(draws).exponential_(generator=generator).numpy()
        seen.update(drawn[n : n + 3].tobytes() for n in range(draws - 2))
    assert len(seen) == count * (draws - 2)
