import hashlib
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from consumers.trainer.learn.policy import Policy
from infra.roles.errors import ConfigError

CPU = torch.device("cpu")


def copy_of(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


def test_masters_are_the_folder_s_weights_in_float32(model_folder):
    masters = Policy.load(model_folder, device=CPU).masters()
    on_disk = load_file(model_folder / "model.safetensors")
    assert list(masters) == sorted(on_disk)
    for name, parameter in masters.items():
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter, on_disk[name])


def test_masters_outlive_their_file(model_folder, tmp_path):
    folder = copy_of(model_folder, tmp_path)
    policy = Policy.load(folder, device=CPU)
    before = policy.sha256()
    path = folder / "model.safetensors"
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(bytes(1000))
    assert policy.sha256() == before


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["model_folder", "tied_folder"])
def test_published_tensors_are_copies_named_as_on_disk(kind, dtype, request):
    folder = request.getfixturevalue(kind)
    policy = Policy.load(folder, device=CPU)
    published = policy.published_tensors(dtype)
    assert sorted(published) == sorted(load_file(folder / "model.safetensors"))
    before = {name: tensor.clone() for name, tensor in published.items()}
    masters = policy.masters()
    with torch.no_grad():
        for parameter in masters.values():
            parameter.add_(1.0)
    for name, tensor in published.items():
        assert tensor.dtype == getattr(torch, dtype)
        assert not tensor.requires_grad
        assert torch.equal(tensor, before[name])


def test_tied_weights_are_published_once(tied_folder):
    published = Policy.load(tied_folder, device=CPU).published_tensors("float32")
    assert "model.embed_tokens.weight" in published
    assert "lm_head.weight" not in published


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["model_folder", "tied_folder"])
def test_a_saved_folder_opens_with_other_tools(kind, dtype, request, tmp_path):
    policy = Policy.load(request.getfixturevalue(kind), device=CPU)
    policy.save_hf(tmp_path / "hf", dtype)
    reopened = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype="auto")
    assert reopened.dtype == getattr(torch, dtype)
    ids = torch.tensor([[1, 40, 41, 42]])
    with torch.no_grad():
        for parameter in policy.masters().values():
            parameter.copy_(parameter.to(getattr(torch, dtype)))
        widened = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32)
        assert torch.equal(widened(input_ids=ids).logits, policy.model(input_ids=ids).logits)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "hf")
    chat = [{"role": "user", "content": "hi"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == "<bos><|user|>hi<eos>"


def test_a_saved_folder_keeps_the_generation_config_and_takes_no_code(model_folder, tmp_path):
    source = copy_of(model_folder, tmp_path)
    (source / "generation_config.json").write_text('{"eos_token_id": [2, 5]}')
    (source / "modeling_evil.py").write_text("raise SystemExit")
    (source / "model.safetensors.index.json").write_text("{}")
    Policy.load(source, device=CPU).save_hf(tmp_path / "hf", "bfloat16")
    names = {path.name for path in (tmp_path / "hf").iterdir()}
    assert json.loads((tmp_path / "hf/generation_config.json").read_text())["eos_token_id"] == [
        2,
        5,
    ]
    assert not names & {"modeling_evil.py", "model.safetensors.index.json"}


def test_the_hash_is_of_names_shapes_and_bytes(policy):
    digest = hashlib.sha256()
    for name, parameter in sorted(policy.model.named_parameters()):
        digest.update(f"{name} {list(parameter.shape)}\n".encode())
        digest.update(parameter.detach().numpy().tobytes())
    assert policy.sha256() == digest.hexdigest()
    with torch.no_grad():
        first = next(iter(policy.masters().values()))
        first.view(-1)[0] = torch.nextafter(first.view(-1)[0], torch.tensor(1e9))
    assert policy.sha256() != digest.hexdigest()


def test_load_masters_puts_another_policy_s_weights_in_place(policy, model_folder):
    other = Policy.load(model_folder, device=CPU)
    with torch.no_grad():
        for parameter in other.masters().values():
            parameter.mul_(1.5)
    policy.load_masters(other.masters())
    assert policy.sha256() == other.sha256()


def test_load_masters_refuses_another_model(policy, tied_folder):
    before = policy.sha256()
    with pytest.raises(ValueError, match=r"weights of another model.*lm_head"):
        policy.load_masters(Policy.load(tied_folder, device=CPU).masters())
    wrong_shape = dict(policy.masters()) | {"model.norm.weight": torch.zeros(3)}
    with pytest.raises(ValueError, match=r"model.norm.weight is \(3,\)"):
        policy.load_masters(wrong_shape)
    assert policy.sha256() == before


def test_a_folder_that_is_not_there_says_what_to_do(tmp_path):
    with pytest.raises(ConfigError, match=r"has no config.json\n  -> .*download"):
        Policy.load(tmp_path / "nowhere")


def test_a_folder_without_weights_says_what_to_do(model_folder, tmp_path):
    folder = copy_of(model_folder, tmp_path)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"no \*\.safetensors weights"):
        Policy.load(folder)


def test_a_damaged_weight_file_is_a_configuration_error(model_folder, tmp_path):
    folder = copy_of(model_folder, tmp_path)
    raw = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(raw[: len(raw) // 2])
    with pytest.raises(ConfigError, match="cannot be loaded"):
        Policy.load(folder, device=CPU)


def test_missing_weights_are_never_drawn_at_random(model_folder, tmp_path):
    folder = copy_of(model_folder, tmp_path)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"lacks 1 weights: \['model.norm.weight'\]"):
        Policy.load(folder, device=CPU)


def test_code_in_the_folder_is_not_run(model_folder, tmp_path):
    folder = copy_of(model_folder, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoModelForCausalLM": "mine.Mine"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(ConfigError, match="without remote code"):
        Policy.load(folder, device=CPU)
    assert not (tmp_path / "ran").exists()
