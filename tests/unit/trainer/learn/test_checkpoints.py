import json
import random
import resource
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from consumers.trainer.batch.packing import pack
from consumers.trainer.learn import checkpoints
from consumers.trainer.learn.checkpoints import CheckpointUnusable
from consumers.trainer.learn.learner import Learner
from consumers.trainer.learn.policy import Policy
from infra.roles.errors import ConfigError
from tests.unit.trainer.batch.trajectories import random_trajectories, recipe

CPU = torch.device("cpu")
BATCHES = [
    pack(random_trajectories(6, seed=seed, vocab_size=128), [1, -1, 0.5, -0.5, 2, -2], 64)
    for seed in range(5)
]


def new_learner(folder, **sections):
    return Learner(recipe(**sections), Policy.load(folder, device=CPU))


@pytest.fixture
def learner(model_folder):
    """After two steps."""
    made = new_learner(model_folder, trainer={"weight_decay": 0.1, "warmup_steps": 3})
    for step in (1, 2):
        made.step(BATCHES[step - 1], step)
    return made


@pytest.mark.parametrize("kind", ["model_folder", "tied_folder"])
def test_resuming_equals_never_having_stopped_bit_for_bit(kind, request, tmp_path):
    folder = request.getfixturevalue(kind)
    sections = {"trainer": {"weight_decay": 0.1, "warmup_steps": 4}}
    steady = new_learner(folder, **sections)
    for step in (1, 2):
        steady.step(BATCHES[step - 1], step)
    saved = checkpoints.save(tmp_path, steady, {}, keep=2)
    expected = [steady.step(BATCHES[step - 1], step) for step in (3, 4, 5)]
    for source in (folder, saved / "hf"):
        resumed = new_learner(source, **sections)
        restored = checkpoints.load(saved, resumed)
        assert (restored.step, resumed.step_done) == (2, 2)
        assert restored.weights_sha256 == resumed.policy.sha256()
        assert [resumed.step(BATCHES[step - 1], step) for step in (3, 4, 5)] == expected


def test_one_step_from_one_checkpoint_repeats_itself(learner, tmp_path):
    saved = checkpoints.save(tmp_path, learner, {}, keep=1)
    results = []
    for _ in range(2):
        checkpoints.load(saved, learner)
        results.append(learner.step(BATCHES[2], 3))
    assert results[0] == results[1]


def test_a_checkpoint_before_the_first_step_restores_a_fresh_optimizer(model_folder, tmp_path):
    learner = new_learner(model_folder)
    saved = checkpoints.save(tmp_path, learner, {}, keep=1)
    first = learner.step(BATCHES[0], 1)
    checkpoints.load(saved, learner)
    assert learner.step(BATCHES[0], 1) == first


def test_extra_and_configuration_come_back(learner, tmp_path):
    extra = {"version": 7, "open": [1, 2], "name": "é"}
    restored = checkpoints.load(checkpoints.save(tmp_path, learner, extra, keep=1), learner)
    assert restored.extra == extra
    assert restored.config == learner.config.model_dump(mode="json")


def test_random_generators_go_on_where_they_were(learner, tmp_path):
    random.seed(1)
    np.random.seed(2)
    np.random.normal()
    torch.manual_seed(3)
    saved = checkpoints.save(tmp_path, learner, {}, keep=1)
    expected = (random.gauss(0, 1), np.random.normal(), torch.rand(3).tolist())
    checkpoints.load(saved, learner)
    assert (random.gauss(0, 1), np.random.normal(), torch.rand(3).tolist()) == expected


def test_moments_and_masters_lie_in_safetensors_by_name(learner, tmp_path):
    saved = checkpoints.save(tmp_path, learner, {}, keep=1)
    names = {path.name for path in (saved / "state").iterdir()}
    assert names == {"weights.safetensors", "optimizer.safetensors", "state.json"}
    weights = load_file(saved / "state/weights.safetensors")
    moments = load_file(saved / "state/optimizer.safetensors")
    for name, parameter in learner.policy.masters().items():
        assert torch.equal(weights[name], parameter)
        state = learner.optimizer.state[parameter]
        assert torch.equal(moments[f"exp_avg.{name}"], state["exp_avg"])
        assert torch.equal(moments[f"exp_avg_sq.{name}"], state["exp_avg_sq"])


def test_the_folder_beside_it_opens_with_other_tools(model_folder, tmp_path):
    learner = new_learner(model_folder, model={"path": "m", "dtype": "bfloat16"})
    learner.step(BATCHES[0], 1)
    saved = checkpoints.save(tmp_path, learner, {}, keep=1)
    reopened = AutoModelForCausalLM.from_pretrained(saved / "hf", dtype="auto")
    assert reopened.dtype == torch.bfloat16
    for name, parameter in learner.policy.masters().items():
        assert torch.equal(reopened.get_parameter(name), parameter.bfloat16())


def test_the_newest_are_kept(learner, tmp_path):
    for step in (3, 4, 10):
        learner.step(BATCHES[0], step)
        checkpoints.save(tmp_path, learner, {}, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_10", "step_4"]
    assert checkpoints.latest(tmp_path) == tmp_path / "step_10"


def test_latest_of_nothing_is_none(tmp_path):
    assert checkpoints.latest(tmp_path / "nowhere") is None
    assert checkpoints.latest(tmp_path) is None


def test_latest_ignores_what_is_half_written(learner, tmp_path):
    good = checkpoints.save(tmp_path, learner, {}, keep=9)
    shutil.copytree(good, tmp_path / ".step_9.123")
    shutil.copytree(good, tmp_path / "step_8")
    (tmp_path / "step_8/state/optimizer.safetensors").write_bytes(b"short")
    shutil.copytree(good, tmp_path / "step_7")
    (tmp_path / "step_7/state/state.json").write_text('{"files": ')
    (tmp_path / "step_6").mkdir()
    assert checkpoints.latest(tmp_path) == good


def test_a_failed_write_leaves_no_checkpoint(learner, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(learner.policy, "save_hf", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoints.save(tmp_path, learner, {}, keep=1)
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_the_system_cuts_short_is_an_os_error(learner, tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 10, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            checkpoints.save(tmp_path, learner, {}, keep=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_a_crash_s_remnants_are_cleared_by_the_next_save(learner, tmp_path):
    (tmp_path / ".step_1.999").mkdir()
    (tmp_path / "notes").mkdir()
    checkpoints.save(tmp_path, learner, {}, keep=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes", "step_2"]


def test_a_flipped_byte_is_refused_and_the_learner_stays(learner, tmp_path):
    saved = checkpoints.save(tmp_path, learner, {}, keep=1)
    learner.step(BATCHES[2], 3)
    before = learner.policy.sha256()
    path = saved / "state/weights.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(CheckpointUnusable, match=r"weights.safetensors is damaged"):
        checkpoints.load(saved, learner)
    assert (learner.policy.sha256(), learner.step_done) == (before, 3)


def test_another_model_s_checkpoint_is_refused(learner, tied_folder, tmp_path):
    saved = checkpoints.save(tmp_path, learner, {}, keep=1)
    with pytest.raises(ConfigError, match="weights of another model"):
        checkpoints.load(saved, new_learner(tied_folder))


def test_an_unknown_schema_version_is_refused(learner, tmp_path):
    saved = checkpoints.save(tmp_path, learner, {}, keep=1)
    path = saved / "state/state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": 2}))
    assert checkpoints.latest(tmp_path) == saved
    with pytest.raises(ConfigError, match="schema_version 2"):
        checkpoints.load(saved, learner)


def test_weights_of_a_checkpoint_are_never_overwritten(learner, model_folder, tmp_path):
    saved = checkpoints.save(tmp_path, learner, {"first": True}, keep=1)
    before = (saved / "state/weights.safetensors").stat().st_mtime_ns
    assert checkpoints.save(tmp_path, learner, {"first": False}, keep=1) == saved
    assert checkpoints.load(saved, learner).extra == {"first": False}
    assert (saved / "state/weights.safetensors").stat().st_mtime_ns == before
    assert len(list((saved / "state").iterdir())) == 3
    other = new_learner(model_folder)
    other.step(BATCHES[3], 2)
    with pytest.raises(CheckpointUnusable, match="holds other weights"):
        checkpoints.save(tmp_path, other, {}, keep=1)
