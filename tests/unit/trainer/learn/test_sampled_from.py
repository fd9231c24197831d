"""The trainer's truncation: by hand, for tokens inside and outside of what is left."""

import math

import pytest
import torch

from consumers.trainer.batch.packing import pack
from consumers.trainer.learn.logprobs import logprobs_of
from consumers.trainer.learn.sampled_from import SampledFrom
from schemas.work import Turn, TurnKind
from tests.unit.trainer.batch.trajectories import held, trajectory

PROBABILITIES = [0.5, 0.25, 0.15, 0.06, 0.04]


def logprob(token: int, sampled_from: SampledFrom, withheld: list[int] | None = None) -> float:
    logits = torch.tensor([PROBABILITIES]).log()
    held = None if withheld is None else torch.tensor([withheld])
    chosen, _ = logprobs_of(logits, torch.tensor([token]), sampled_from, held)
    return math.exp(chosen.item())


@pytest.mark.parametrize(
    ("sampled_from", "left"),
    [
        (SampledFrom(), 1.0),
        (SampledFrom(top_k=2), 0.75),
        (SampledFrom(top_p=0.8), 0.9),
        (SampledFrom(min_p=0.2), 0.9),
        (SampledFrom(min_p=0.2, top_p=0.8), 0.75),
        (SampledFrom(top_k=9), 1.0),
    ],
)
def test_what_is_left_is_renormalised(sampled_from, left):
    """With min-p first, top-p 0.8 is of the 0.9 that min-p leaves: two tokens hold it."""
    assert logprob(0, sampled_from) == pytest.approx(0.5 / left, abs=1e-6)
    assert logprob(1, sampled_from) == pytest.approx(0.25 / left, abs=1e-6)


def test_a_token_that_fell_out_is_kept_beside_what_is_left():
    assert logprob(4, SampledFrom(top_k=2)) == pytest.approx(0.04 / 0.79, abs=1e-6)
    assert logprob(4, SampledFrom(), [4, -1]) == pytest.approx(0.04, abs=1e-6)


def test_tokens_that_could_not_be_sampled_have_no_share():
    assert logprob(1, SampledFrom(), [0, 99]) == pytest.approx(0.5, abs=1e-6)
    assert logprob(1, SampledFrom(top_k=2), [0, -1]) == pytest.approx(0.25 / 0.4, abs=1e-6)


def test_the_gradient_is_of_the_truncated_distribution_alone():
    """d log p_t / d z_j = [j = t] - p_j over what is left, and nothing elsewhere."""
    logits = torch.tensor([PROBABILITIES]).log().requires_grad_()
    chosen, entropies = logprobs_of(logits, torch.tensor([1]), SampledFrom(top_k=2))
    chosen.sum().backward()
    expected = torch.tensor([[-0.5 / 0.75, 1 - 0.25 / 0.75, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(logits.grad, expected)
    by_hand = -sum(p * math.log(p) for p in (2 / 3, 1 / 3))
    assert entropies.item() == pytest.approx(by_hand, abs=1e-6)


def test_every_row_is_truncated_by_itself_however_many_there_are():
    torch.manual_seed(0)
    logits = torch.randn(2500, 40)
    tokens = torch.randint(0, 40, (2500,))
    cut = SampledFrom(temperature=0.7, min_p=0.01, top_k=20, top_p=0.9)
    together, _ = logprobs_of(logits, tokens, cut)
    apart = [logprobs_of(logits[i : i + 1], tokens[i : i + 1], cut)[0] for i in range(0, 2500, 97)]
    torch.testing.assert_close(together[::97], torch.cat(apart))


def test_a_batch_tells_where_stop_tokens_could_not_be():
    turns = (
        Turn(kind=TurnKind.PROMPT, start=0, stop=2),
        Turn(kind=TurnKind.ASSISTANT, start=2, stop=6),
        Turn(kind=TurnKind.TOOL, start=6, stop=7),
        Turn(kind=TurnKind.ASSISTANT, start=7, stop=8),
    )
    one = trajectory(index=0, token_ids=range(8), mask=[0, 0, 1, 1, 1, 1, 0, 1], turns=turns)
    one = held(one, min_tokens=2, stop_token_ids=(30, 31))
    other = trajectory(index=1, token_ids=[1, 2, 3], mask=[0, 1, 1])
    (batch,) = pack([one, other], [0.0, 0.0], 100)
    none, both = [-1, -1], [30, 31]
    assert batch.withheld is not None
    assert batch.withheld[0].tolist() == [none, none, both, both, none, none, none, both]
    assert (batch.withheld[1] == -1).all()
    (plain,) = pack([other], [0.0], 100)
    assert plain.withheld is None
