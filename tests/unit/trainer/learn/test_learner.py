import dataclasses
import math

import numpy as np
import pytest
import torch

from consumers.trainer.batch.packing import pack
from consumers.trainer.learn.learner import Learner, StepFailed
from consumers.trainer.learn.policy import Policy
from tests.unit.trainer.batch.trajectories import random_trajectories, recipe, trajectory

CPU = torch.device("cpu")
TRAJECTORIES = random_trajectories(12, seed=5, vocab_size=128)
ADVANTAGES = np.random.default_rng(0).normal(size=12).tolist()


def new_learner(folder, **sections):
    return Learner(recipe(**sections), Policy.load(folder, device=CPU))


def on_policy(learner):
    """The same trajectories with the policy's own logprobs, drifted by up to a third."""
    made = []
    for number, source in enumerate(TRAJECTORIES):
        tokens = source.rollout.progress.tokens
        drift = np.random.default_rng(number).uniform(-0.35, 0.35, len(tokens))
        ids = torch.from_numpy(tokens.token_ids.astype("int64"))
        with torch.no_grad():
            every = learner.policy.model(input_ids=ids[None]).logits[0].log_softmax(-1)
        own = [0.0, *every[:-1].gather(1, ids[1:, None])[:, 0].tolist()]
        made.append(
            trajectory(
                group=source.rollout.group,
                index=source.rollout.index,
                token_ids=tokens.token_ids.tolist(),
                mask=tokens.mask_array.tolist(),
                versions=tokens.version_array.tolist(),
                logprobs=[
                    min(a + d, 0.0) if m else 0.0
                    for a, d, m in zip(own, drift.tolist(), tokens.mask_array, strict=True)
                ],
            )
        )
    return made


def gradients(learner, micro_batches, monkeypatch):
    """Gradients as they are when the optimizer is called."""
    seen = {}

    def remember():
        seen.update({n: p.grad.clone() for n, p in learner.policy.masters().items()})

    with monkeypatch.context() as patched:
        patched.setattr(learner.optimizer, "step", remember)
        result = learner.step(micro_batches, learner.step_done + 1)
    return seen, result


def by_hand(policy, trajectories, advantages, temperature=1.0):
    """Loss and gradients in float64: one sequence at a time, the formula token by token."""
    model = policy.model.double()
    loss, count = torch.zeros((), dtype=torch.float64), 0
    for one, advantage in zip(trajectories, advantages, strict=True):
        tokens = one.rollout.progress.tokens
        ids = torch.from_numpy(tokens.token_ids.astype("int64"))
        logprobs = (model(input_ids=ids[None]).logits[0] / temperature).log_softmax(-1)
        for position in tokens.mask_array.nonzero()[0].tolist():
            ratio = (logprobs[position - 1, ids[position]] - tokens.logprobs[position].item()).exp()
            candidates = [ratio * advantage, ratio.clamp(0.8, 1.28) * advantage]
            gain = min(candidates, key=lambda candidate: candidate.item())
            if advantage < 0 and gain.item() < 3.0 * advantage:
                gain = torch.full_like(gain, 3.0 * advantage)
            loss, count = loss - gain, count + 1
    (loss / count).backward()
    return loss.item() / count, {n: p.grad for n, p in sorted(model.named_parameters())}


@pytest.mark.parametrize("kind", ["model_folder", "tied_folder"])
@pytest.mark.parametrize("temperature", [1.0, 0.8])
def test_loss_and_gradients_equal_a_plain_float64_loop(kind, temperature, request, monkeypatch):
    folder = request.getfixturevalue(kind)
    learner = new_learner(folder, trainer={"grad_clip": 1e9}, rollout={"temperature": temperature})
    trajectories = on_policy(learner)
    measured, result = gradients(learner, pack(trajectories, ADVANTAGES, 90), monkeypatch)
    loss, expected = by_hand(Policy.load(folder, device=CPU), trajectories, ADVANTAGES, temperature)
    assert result.loss == pytest.approx(loss, abs=1e-5)
    norm = math.sqrt(sum(float(g.square().sum()) for g in expected.values()))
    assert result.grad_norm == pytest.approx(norm, rel=1e-4)
    assert result.metrics["train/clip_frac"] > 0
    for name, gradient in measured.items():
        torch.testing.assert_close(gradient.double(), expected[name], atol=1e-5, rtol=1e-3)


def test_gradients_do_not_depend_on_the_split_nor_on_padding(model_folder, monkeypatch):
    learner = new_learner(model_folder, trainer={"grad_clip": 1e9})
    trajectories = on_policy(learner)
    whole, expected = gradients(learner, pack(trajectories, ADVANTAGES, 10_000), monkeypatch)
    for bound in (1, 40, 77, 150):
        micro_batches = pack(trajectories, ADVANTAGES, bound)
        assert len(micro_batches) > 1
        split, result = gradients(learner, micro_batches, monkeypatch)
        assert result.metrics == pytest.approx(expected.metrics, abs=1e-5, rel=1e-5)
        for name, gradient in split.items():
            torch.testing.assert_close(gradient, whole[name], atol=1e-6, rtol=0)


@pytest.mark.parametrize("bound", [77, 10_000])
def test_each_rollouts_logprobs_are_those_of_the_weights_before_the_step(model_folder, bound):
    policy = Policy.load(model_folder, device=CPU)
    result = new_learner(model_folder).step(pack(TRAJECTORIES, ADVANTAGES, bound), 1)
    assert len(result.logprobs) == len(TRAJECTORIES)
    for one in TRAJECTORIES:
        tokens = one.rollout.progress.tokens
        ids = torch.from_numpy(tokens.token_ids.astype("int64"))
        with torch.no_grad():
            every = policy.model(input_ids=ids[None]).logits[0].log_softmax(-1)
        own = [every[at - 1, ids[at]].item() for at in tokens.mask_array.nonzero()[0]]
        found = np.frombuffer(result.logprobs[one.rollout.rollout_id], dtype="<f2")
        assert found.tolist() == pytest.approx(own, abs=1e-5, rel=1e-3)


def test_the_gradient_norm_is_clipped_and_reported_before_clipping(model_folder, monkeypatch):
    learner = new_learner(model_folder, trainer={"grad_clip": 0.01})
    clipped, result = gradients(learner, pack(TRAJECTORIES, ADVANTAGES, 200), monkeypatch)
    norm = math.sqrt(sum(float(g.square().sum()) for g in clipped.values()))
    assert norm == pytest.approx(0.01, rel=1e-3)
    assert result.grad_norm > 0.1
    assert result.metrics["train/grad_norm"] == result.grad_norm


def test_the_same_steps_give_the_same_bits(model_folder):
    batch = pack(TRAJECTORIES, ADVANTAGES, 100)
    first, second = new_learner(model_folder), new_learner(model_folder)
    for step in (1, 2, 3):
        assert first.step(batch, step) == second.step(batch, step)
    assert first.policy.sha256() == second.policy.sha256()


def test_a_step_follows_the_advantages(model_folder):
    learner = new_learner(model_folder)
    (batch,) = pack(TRAJECTORIES[:1], [1.0], 100)
    old = torch.tensor(batch.rollout_logprobs[batch.mask]).mean()
    kls = [
        learner.step(pack(TRAJECTORIES[:1], [1.0], 100), step).metrics["train/kl"]
        for step in (1, 2, 3, 4)
    ]
    means = [float(old) - kl for kl in kls]
    assert means == sorted(means)
    assert means[-1] > means[0]


def test_metrics_name_the_rate_of_the_step(model_folder):
    learner = new_learner(model_folder, trainer={"lr": 1e-3, "warmup_steps": 4})
    batch = pack(TRAJECTORIES, ADVANTAGES, 200)
    rates = [learner.step(batch, step).metrics["train/lr"] for step in (1, 2, 5)]
    assert rates == pytest.approx([2.5e-4, 5e-4, 1e-3])


def test_mismatch_appears_only_with_tokens_of_the_current_version(model_folder):
    learner = new_learner(model_folder)
    batch = pack(TRAJECTORIES, ADVANTAGES, 200)
    assert "train/mismatch_kl" in learner.step(batch, 1, version=2).metrics
    assert "train/mismatch_kl" not in learner.step(batch, 2, version=9).metrics
    assert "train/mismatch_kl" not in learner.step(batch, 3).metrics


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_leaves_everything_as_it_was(model_folder, broken):
    learner = new_learner(model_folder)
    learner.step(pack(TRAJECTORIES, ADVANTAGES, 200), 1)
    before = learner.policy.sha256()
    good, bad = pack(TRAJECTORIES[:2], ADVANTAGES[:2], 1)
    bad = dataclasses.replace(bad, advantages=np.array([broken], dtype=np.float32))
    with pytest.raises(StepFailed, match=rf"step 2 failed: loss is .*{bad.rollout_ids[0]}") as info:
        learner.step([good, bad], 2)
    assert info.value.rollout_ids == bad.rollout_ids
    assert (learner.policy.sha256(), learner.step_done) == (before, 1)
    twin = new_learner(model_folder)
    twin.step(pack(TRAJECTORIES, ADVANTAGES, 200), 1)
    again = pack(TRAJECTORIES, ADVANTAGES, 100)
    assert learner.step(again, 2) == twin.step(again, 2)


def test_a_gradient_that_is_not_finite_names_the_whole_batch(model_folder):
    learner = new_learner(model_folder)
    before = learner.policy.sha256()
    batch = pack(TRAJECTORIES[:3], ADVANTAGES[:3], 40)
    weight = next(iter(learner.policy.masters().values()))
    weight.register_hook(lambda gradient: gradient * math.nan)
    with pytest.raises(StepFailed, match="step 1 failed: gradient norm is nan") as info:
        learner.step(batch, 1)
    assert set(info.value.rollout_ids) == {"0.0", "0.1", "0.2"}
    assert (learner.policy.sha256(), learner.step_done) == (before, 0)


def test_memory_that_runs_out_fails_the_step_and_says_what_to_lower(model_folder, monkeypatch):
    learner = new_learner(model_folder)

    def exhausted(**_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(learner.policy.model, "forward", exhausted)
    with pytest.raises(StepFailed, match=r"out of memory.*\n  -> lower trainer.micro_batch_tokens"):
        learner.step(pack(TRAJECTORIES, ADVANTAGES, 100), 1)


def test_a_batch_without_sampled_tokens_fails(model_folder):
    silent = trajectory(token_ids=[5, 6], mask=[0, 0], num_prompt_tokens=1)
    with pytest.raises(StepFailed, match="no sampled token"):
        new_learner(model_folder).step(pack([silent], [1.0], 10), 1)


def test_a_step_is_taken_once(model_folder):
    learner = new_learner(model_folder)
    batch = pack(TRAJECTORIES, ADVANTAGES, 200)
    learner.step(batch, 3)
    with pytest.raises(ValueError, match="step 3 after step 3"):
        learner.step(batch, 3)
