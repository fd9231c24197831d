"""The learner's ratio is of like to like: one, when nothing but the sampling options changed."""

import dataclasses

import pytest
import torch

from consumers.trainer.batch.packing import MicroBatch, pack
from consumers.trainer.learn.learner import Learner
from consumers.trainer.learn.logprobs import sampled_logprobs
from consumers.trainer.learn.policy import Policy
from consumers.trainer.learn.sampled_from import SampledFrom
from schemas.config import RolloutSection
from schemas.work import Turn, TurnKind
from tests.unit.trainer.batch.trajectories import held, random_trajectories, recipe, trajectory

STOPS = (5, 6, 7)


def stored(policy: Policy, options: dict[str, float]) -> MicroBatch:
    """A batch with the logprobs that an engine with these options would have stored."""
    made = []
    for one in random_trajectories(8, seed=2, vocab_size=128)[::2]:
        tokens, start = one.rollout.progress.tokens, one.rollout.progress.num_prompt_tokens
        turns = (
            Turn(kind=TurnKind.PROMPT, start=0, stop=start),
            Turn(kind=TurnKind.ASSISTANT, start=start, stop=len(tokens)),
        )
        ids = [9 if token in STOPS else token for token in tokens.token_ids.tolist()]
        again = trajectory(
            group=one.rollout.group,
            index=one.rollout.index,
            token_ids=ids,
            mask=tokens.mask_array.tolist(),
            turns=turns,
        )
        least = int(options.get("min_tokens", 0))
        made.append(held(again, min_tokens=least, stop_token_ids=STOPS))
    (batch,) = pack(made, [1.0, -1.0, 0.5, -0.5], 10_000)
    mask = torch.from_numpy(batch.mask)
    withheld = None if batch.withheld is None else torch.from_numpy(batch.withheld)
    with torch.no_grad():
        logprobs, _ = sampled_logprobs(
            policy.model,
            torch.from_numpy(batch.token_ids),
            mask,
            SampledFrom.of(RolloutSection(**options)),
            withheld,
        )
    rollout_logprobs = torch.zeros(mask.shape)
    rollout_logprobs[mask] = logprobs
    return dataclasses.replace(batch, rollout_logprobs=rollout_logprobs.numpy())


@pytest.mark.parametrize(
    "options",
    [{"top_k": 30}, {"top_p": 0.6}, {"min_p": 0.02}, {"min_tokens": 4}, {"temperature": 0.5}],
    ids=lambda options: next(iter(options)),
)
def test_the_ratio_is_one_under_the_recipes_own_options(model_folder, options):
    policy = Policy.load(model_folder, device=torch.device("cpu"))
    batch = stored(policy, options)
    same = Learner(recipe(rollout=options), policy).step([batch], 1).metrics
    assert same["train/ratio_max"] == pytest.approx(1.0, abs=1e-5)
    assert same["train/kl_k3"] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("options", [{"top_k": 30}, {"min_tokens": 4}])
def test_it_would_not_be_one_without_them(model_folder, options):
    policy = Policy.load(model_folder, device=torch.device("cpu"))
    batch = dataclasses.replace(stored(policy, options), withheld=None)
    other = Learner(recipe(), policy).step([batch], 1).metrics
    assert other["train/kl_k3"] > 1e-5
