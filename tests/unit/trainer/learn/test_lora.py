import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from consumers.trainer.batch.packing import pack
from consumers.trainer.books.balance import Rules
from consumers.trainer.learn import checkpoints
from consumers.trainer.learn.check import check
from consumers.trainer.learn.learner import Learner
from consumers.trainer.learn.lora import LoraPolicy
from consumers.trainer.learn.policy import Policy
from consumers.trainer.saving import restore
from infra.roles.errors import ConfigError
from infra.weights.adapter import merged
from schemas.config import TrainerSection
from tests.unit.trainer.batch.trajectories import random_trajectories, recipe

CPU = torch.device("cpu")
SECTION = TrainerSection(lr=1e-3, lora_rank=4, lora_alpha=6.0)


@pytest.fixture(params=["model_folder", "tied_folder"])
def folder(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def policy(folder):
    return adapted(folder)


@pytest.fixture
def batch():
    advantages = np.random.default_rng(0).normal(size=6).tolist()
    return pack(random_trajectories(6, seed=5, vocab_size=128), advantages, 4096)


def adapted(folder, section=SECTION, seed=0):
    return LoraPolicy.put_on(Policy.load(folder, device=CPU), section, seed=seed)


def disturb(policy, seed=1):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.masters().values():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_fresh_adapter_changes_nothing(folder, policy, dtype):
    plain = Policy.load(folder, device=CPU).published_tensors(dtype)
    fresh = policy.published_tensors(dtype)
    assert fresh.keys() == plain.keys()
    assert all(torch.equal(fresh[name], plain[name]) for name in plain)


def test_masters_are_the_adapter_alone(policy):
    assert len(policy.masters()) == 2 * 2 * 7
    assert all("lora_" in name for name in policy.masters())
    assert all(one.dtype == torch.float32 for one in policy.masters().values())


def test_what_is_published_is_what_is_trained(policy, tmp_path):
    """The merged model, opened by transformers, says what the adapted one says."""
    disturb(policy)
    policy.save_hf(tmp_path / "hf", "float32")
    opened = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    token_ids = torch.tensor([[5, 9, 40, 77, 3]])
    with torch.no_grad():
        ours = policy.model(token_ids).logits
        theirs = opened(token_ids).logits
    assert torch.allclose(ours, theirs, atol=1e-4)


def test_peft_opens_the_adapter(folder, policy, tmp_path):
    from peft import PeftModel

    disturb(policy)
    policy.save_hf(tmp_path / "hf", "float32")
    plain = AutoModelForCausalLM.from_pretrained(folder)
    opened = PeftModel.from_pretrained(plain, tmp_path / "adapter")
    token_ids = torch.tensor([[5, 9, 40, 77, 3]])
    with torch.no_grad():
        assert torch.allclose(opened(token_ids).logits, policy.model(token_ids).logits, atol=1e-5)
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (4, 6.0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_who_has_the_adapter_and_the_start_has_the_version(folder, policy, dtype):
    start = Policy.load(folder, device=CPU).published_tensors(dtype)
    disturb(policy)
    version = policy.published_tensors(dtype)
    changed = dict(merged(start, policy.adapter_tensors()))
    assert len(changed) == 14
    for name, tensor in (start | changed).items():
        assert torch.equal(tensor, version[name])
        assert torch.equal(version[name], start[name]) == (name not in changed)


def test_a_step_trains_the_adapter_and_leaves_the_base(folder, policy, batch):
    learner = Learner(recipe(trainer={"lr": 1e-2, "lora_rank": 4, "warmup_steps": 0}), policy)
    base = {
        name: one.clone() for name, one in policy.model.named_parameters() if "lora_" not in name
    }
    before = policy.sha256()
    result = learner.step(batch, 1)
    assert result.grad_norm > 0
    assert policy.sha256() != before
    assert all(torch.equal(dict(policy.model.named_parameters())[n], t) for n, t in base.items())


def test_a_checkpoint_holds_the_adapter_and_restores_it(folder, policy, batch, tmp_path):
    config = recipe(trainer={"lr": 1e-2, "lora_rank": 4})
    learner = Learner(config, policy)
    learner.step(batch, 1)
    saved = checkpoints.save(tmp_path, learner, {}, keep=1)
    assert all("lora_" in name for name in load_file(saved / "state" / "weights.safetensors"))
    other = Learner(config, adapted(folder, seed=7))
    assert other.policy.sha256() != policy.sha256()
    checkpoints.load(saved, other)
    assert other.policy.sha256() == policy.sha256()
    assert learner.step(batch, 2).weights_sha256 == other.step(batch, 2).weights_sha256


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"lora_rank": 2}, "does not fit model.path"),
        ({"lora_rank": 4, "lora_alpha": 8.0}, "trainer.lora_alpha was 32.0 and is now 8.0"),
    ],
)
def test_a_run_does_not_go_on_with_another_adapter(folder, tmp_path, keys, complaint):
    began = recipe(trainer={"lr": 1e-2, "lora_rank": 4})
    checkpoints.save(tmp_path, Learner(began, adapted(folder, began.trainer)), {}, keep=1)
    now = recipe(trainer={"lr": 1e-2, **keys})
    with pytest.raises(ConfigError, match=complaint):
        restore(tmp_path, Learner(now, adapted(folder, now.trainer)), Rules.of(now))


def test_the_seed_decides_the_random_half(folder):
    assert adapted(folder, seed=3).sha256() == adapted(folder, seed=3).sha256()
    assert adapted(folder, seed=3).sha256() != adapted(folder, seed=4).sha256()


@pytest.mark.parametrize(
    ("targets", "complaint"),
    [
        (("nothing_here",), "nothing_here"),
        (("q_proj", "v_porj"), "(?s)no v_porj.*is called .*q_proj"),
        (("embed_tokens",), "embed_tokens"),
    ],
)
def test_what_is_no_linear_layer_is_refused(folder, targets, complaint):
    with pytest.raises(ConfigError, match=complaint):
        adapted(folder, SECTION.model_copy(update={"lora_targets": targets}))


def test_a_tied_head_is_refused(tied_folder):
    with pytest.raises(ConfigError, match="lm_head"):
        adapted(tied_folder, SECTION.model_copy(update={"lora_targets": ("lm_head",)}))


def test_without_peft_the_recipe_is_refused(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="PEFT"):
        check(recipe(trainer={"lora_rank": 4}))


@pytest.mark.parametrize("key", [{"lora_alpha": 8.0}, {"lora_targets": ("q_proj",)}])
def test_keys_without_effect_are_refused(key):
    with pytest.raises(ValueError, match="has no effect"):
        recipe(trainer=key)
