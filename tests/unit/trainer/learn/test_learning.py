"""The whole learning half on a task that can be learned: count on from a digit."""

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from consumers.trainer.batch.advantages import advantages_of
from consumers.trainer.batch.filters import zero_variance
from consumers.trainer.batch.groups import Group
from consumers.trainer.batch.packing import pack
from consumers.trainer.batch.stats import batch_stats
from consumers.trainer.learn.learner import Learner
from consumers.trainer.learn.policy import Policy
from tests.unit.trainer.batch.trajectories import recipe, trajectory

BOS, FIRST_DIGIT = 1, 3
GROUPS, GROUP_SIZE, LENGTH = 16, 8, 3
STEPS = 30


def starting_model(folder):
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        vocab_size=16,
        max_position_embeddings=32,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        initializer_range=0.1,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)


def sample(engine, digits, generator):
    """`[N]` digits to `[N, 2 + LENGTH]` tokens and their logprobs, 0 for the prompt."""
    ids = torch.stack([torch.full_like(digits, BOS), digits + FIRST_DIGIT], dim=1)
    logprobs = torch.zeros(ids.shape)
    for _ in range(LENGTH):
        with torch.no_grad():
            last = engine(input_ids=ids).logits[:, -1].log_softmax(-1)
        token = torch.multinomial(last.exp(), 1, generator=generator)
        ids, logprobs = torch.cat([ids, token], 1), torch.cat([logprobs, last.gather(1, token)], 1)
    return ids, logprobs


def rollout(engine, version, generator):
    digits = torch.randint(0, 10, (GROUPS,), generator=generator)
    ids, logprobs = sample(engine, digits.repeat_interleave(GROUP_SIZE), generator)
    groups = []
    for number, digit in enumerate(digits.tolist()):
        wanted = [(digit + 1 + i) % 10 + FIRST_DIGIT for i in range(LENGTH)]
        members = []
        for index in range(GROUP_SIZE):
            row = number * GROUP_SIZE + index
            matches = np.equal(ids[row, 2:].tolist(), wanted)
            members.append(
                trajectory(
                    group=number,
                    index=index,
                    token_ids=ids[row].tolist(),
                    mask=[0, 0] + [1] * LENGTH,
                    logprobs=logprobs[row].clamp(max=0).tolist(),
                    versions=[-1, -1] + [version] * LENGTH,
                    reward=float(matches.mean()),
                )
            )
        groups.append(Group.of(number, members))
    return groups


def test_reward_climbs_although_every_rollout_is_one_version_old(tmp_path):
    starting_model(tmp_path)
    policy = Policy.load(tmp_path, device=torch.device("cpu"))
    learner = Learner(recipe(trainer={"lr": 5e-3, "warmup_steps": 5}), policy)
    engine = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    generator = torch.Generator().manual_seed(0)
    published = [policy.published_tensors("bfloat16")]
    rewards = []
    for step in range(1, STEPS + 1):
        behind = max(step - 2, 0)
        engine.load_state_dict(published[behind])
        groups = rollout(engine, behind, generator)
        stats = batch_stats(groups, step - 1)
        assert stats["staleness/max"] == min(step - 1, 1)
        rewards.append(stats["reward/mean"])
        kept = [group for group in groups if not zero_variance(group.rewards)]
        members = [member for group in kept for member in group.members]
        learner.step(pack(members, advantages_of(kept, "dr_grpo"), 256), step, version=step - 1)
        published.append(policy.published_tensors("bfloat16"))
    assert np.mean(rewards[:3]) < 0.15
    assert np.mean(rewards[-5:]) > 0.5
