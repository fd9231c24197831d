import pytest

from consumers.trainer.learn.check import check
from infra.roles.errors import ConfigError
from tests.unit.trainer.batch.trajectories import recipe


def checked(model_folder, **sections):
    return check(recipe(model={"path": str(model_folder)}, **sections))


def test_a_sound_recipe_lists_what_was_checked(model_folder):
    lines = checked(model_folder)
    assert any("ppo_clip" in line and "16 x 8" in line for line in lines)
    assert any(str(model_folder) in line for line in lines)


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({"rollout": {"temperature": 0}}, "rollout.temperature=0"),
        ({"algorithm": {"group_size": 1, "min_group_size": 1}}, "algorithm.group_size=1"),
    ],
)
def test_what_would_bias_or_empty_the_gradient_is_refused(model_folder, sections, named):
    with pytest.raises(ConfigError, match=named) as info:
        checked(model_folder, **sections)
    assert info.value.hint


@pytest.mark.parametrize("targets", [["q_porj"], ["q_proj", "layers.0.up_porj"]])
def test_a_misspelt_target_of_an_adapter_is_refused(model_folder, targets):
    with pytest.raises(ConfigError, match=r"(?s)the model has no .*_porj.*q_proj"):
        checked(model_folder, trainer={"lr": 1e-3, "lora_rank": 4, "lora_targets": targets})


def test_a_damaged_file_of_the_model_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(ConfigError, match=r"model\.safetensors is no safetensors file"):
        checked(tmp_path, trainer={"lr": 1e-3, "lora_rank": 4, "lora_targets": ["q_proj"]})


def test_a_model_folder_without_weights_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"no config.json or no \*.safetensors"):
        checked(tmp_path)


def test_trajectories_longer_than_a_micro_batch_are_announced(model_folder):
    lines = checked(model_folder, trainer={"lr": 1e-3, "micro_batch_tokens": 512})
    assert any("may reach 2048 tokens" in line for line in lines)


@pytest.mark.parametrize("keys", [{"top_p": 0.9}, {"top_k": 50}, {"min_p": 0.05}])
def test_a_truncated_distribution_is_said_to_be_recomputed(model_folder, keys):
    assert any("truncated" in line for line in checked(model_folder, rollout=keys))
    assert not any("truncated" in line for line in checked(model_folder))


def test_sampling_options_are_said_to_bias_the_ratio(model_folder):
    options = {
        "engine": "vllm",
        "on_sync": "in_flight",
        "sampling_options": {"presence_penalty": 1},
    }
    lines = checked(model_folder, rollout=options)
    assert any("presence_penalty" in line and "biased" in line for line in lines)
