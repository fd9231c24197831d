"""What a reload says of a model, on one of a few plain layers; no process is started."""

import pytest
import torch

from consumers.rollout.engines.vllm.setup import prepare_import

pytestmark = pytest.mark.vllm


class Model(torch.nn.Module):
    """A body, a head that is tied to it, and another layer."""

    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(3, 3)
        self.head = torch.nn.Linear(3, 3, bias=False)
        self.head.weight = self.body.weight
        self.other = torch.nn.Linear(3, 2, bias=False)

    def load_weights(self, tensors):
        from vllm.model_executor.model_loader.weight_utils import default_weight_loader

        parameters, loaded = dict(self.named_parameters()), set()
        for name, tensor in tensors:
            loader = getattr(parameters[name], "weight_loader", default_weight_loader)
            loader(parameters[name], tensor)
            loaded.add(name)
        return loaded


@pytest.fixture
def model():
    prepare_import()
    from vllm.model_executor.model_loader.reload import record_metadata_for_reloading

    made = Model()
    record_metadata_for_reloading(made)
    made.other.register_buffer("scale", torch.ones(2))  # as of a method, after loading
    return made


def given(seed: int, *names: str) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    shapes = {"body.weight": (3, 3), "body.bias": (3,), "other.weight": (2, 3)}
    drawn = {name: torch.randn(shape) for name, shape in shapes.items()}
    return {name: drawn[name] for name in names or shapes}


def load(model, tensors) -> list[str]:
    from vllm.config import VllmConfig, set_current_vllm_config

    from consumers.rollout.engines.vllm.reload import reload

    with set_current_vllm_config(VllmConfig()):
        return reload(model, None, iter(tensors.items()))


def test_what_is_loaded_is_there_also_under_its_other_name(model):
    from consumers.rollout.engines.vllm.reload import shared

    assert shared(model) == {"head.weight"}
    assert load(model, given(1)) == []
    assert torch.equal(model.body.weight, given(1)["body.weight"])
    assert model.head.weight is model.body.weight
    assert shared(model) == {"head.weight"}


def test_a_layer_that_was_left_out_is_named(model):
    before = model.other.weight.clone()
    assert load(model, given(1, "body.weight", "body.bias")) == ["other.weight"]
    assert torch.equal(model.other.weight, before)
    assert load(model, given(1, "other.weight")) == ["body.bias", "body.weight", "head.weight"]


def test_the_digest_is_of_all_that_layers_hold(model):
    from consumers.rollout.engines.vllm.reload import digest

    load(model, given(1))
    first = digest(model)
    load(model, given(2))
    assert digest(model) != first
    load(model, given(1))
    assert digest(model) == first
    model.other.scale[1] = 2
    assert digest(model) != first
