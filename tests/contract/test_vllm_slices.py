"""Which slice of a tensor a worker holds: the one that vLLM's own loaders put there."""

import pytest
import torch

from consumers.rollout.engines.vllm.loading import joined
from consumers.rollout.engines.vllm.setup import prepare_import

pytestmark = pytest.mark.vllm

HEADS, HEAD_SIZE, HIDDEN, VOCABULARY = 8, 4, 24, 100


@pytest.fixture
def layers(monkeypatch):
    """vLLM's layers, of a worker of a given number among so many; no process is started."""
    prepare_import()
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor import parameter
    from vllm.model_executor.layers import linear
    from vllm.model_executor.layers import vocab_parallel_embedding as vocabulary

    def build(rank: int, size: int, kv_heads: int) -> torch.nn.Module:
        for module in (linear, parameter, vocabulary):
            monkeypatch.setattr(module, "get_tensor_model_parallel_rank", lambda: rank)
            monkeypatch.setattr(module, "get_tensor_model_parallel_world_size", lambda: size)
        model = torch.nn.Module()
        model.packed_modules_mapping = {
            "qkv_proj": ["q_proj", "k_proj", "v_proj"],
            "gate_up_proj": ["gate_proj", "up_proj"],
        }
        with set_current_vllm_config(VllmConfig()):
            model.qkv_proj = linear.QKVParallelLinear(HIDDEN, HEAD_SIZE, HEADS, kv_heads, bias=True)
            model.gate_up_proj = linear.MergedColumnParallelLinear(HIDDEN, [64, 64], bias=False)
            model.up = linear.ColumnParallelLinear(HIDDEN, 48, bias=True)
            model.down = linear.RowParallelLinear(64, HIDDEN, bias=True)
            model.same = linear.ReplicatedLinear(HIDDEN, 5, bias=True)
            model.embed = vocabulary.VocabParallelEmbedding(VOCABULARY, HIDDEN)
            model.head = vocabulary.ParallelLMHead(VOCABULARY, HIDDEN, bias=True)
            model.norm = torch.nn.Module()
            model.norm.weight = torch.nn.Parameter(torch.zeros(HIDDEN))
        return model

    return build


def published(kv_heads: int) -> dict[str, torch.Tensor]:
    shapes = {
        ".q_proj.weight": (HEADS * HEAD_SIZE, HIDDEN),
        ".k_proj.weight": (kv_heads * HEAD_SIZE, HIDDEN),
        ".v_proj.weight": (kv_heads * HEAD_SIZE, HIDDEN),
        ".q_proj.bias": (HEADS * HEAD_SIZE,),
        ".k_proj.bias": (kv_heads * HEAD_SIZE,),
        ".v_proj.bias": (kv_heads * HEAD_SIZE,),
        ".gate_proj.weight": (64, HIDDEN),
        ".up_proj.weight": (64, HIDDEN),
        "up.weight": (48, HIDDEN),
        "up.bias": (48,),
        "down.weight": (HIDDEN, 64),
        "down.bias": (HIDDEN,),
        "same.weight": (5, HIDDEN),
        "same.bias": (5,),
        "embed.weight": (VOCABULARY, HIDDEN),
        "head.weight": (VOCABULARY, HIDDEN),
        "head.bias": (VOCABULARY,),
        "norm.weight": (HIDDEN,),
    }
    torch.manual_seed(kv_heads)
    return {name: torch.randn(shape) for name, shape in shapes.items()}


FUSED = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "gate_proj": 0, "up_proj": 1}


def load(model: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> None:
    """As the `load_weights` of vLLM's models does."""
    for name, tensor in tensors.items():
        module_name, _, leaf = name.removeprefix(".").rpartition(".")
        if (part := FUSED.get(module_name)) is None:
            parameter = getattr(model.get_submodule(module_name), leaf)
            loader = getattr(parameter, "weight_loader", None)
            if loader is None:
                parameter.data.copy_(tensor)
            else:
                loader(parameter, tensor)
        else:
            fused = model.qkv_proj if isinstance(part, str) else model.gate_up_proj
            parameter = getattr(fused, leaf)
            parameter.weight_loader(parameter, tensor, part)


@pytest.mark.parametrize("kv_heads", [1, 2, 8])
@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_each_worker_holds_its_slices_and_together_they_hold_all(layers, size, kv_heads):
    from consumers.rollout.engines.vllm.shards import differing, shards_of

    tensors = published(kv_heads)
    answers = []
    for rank in range(size):
        model = layers(rank, size, kv_heads)
        load(model, tensors)
        shards = list(shards_of(model))
        assert {shard.name for shard in shards} == tensors.keys()
        assert {shard.name: shard.shape for shard in shards} == {
            name: tuple(tensor.shape) for name, tensor in tensors.items()
        }
        assert differing(shards, tensors) == []
        changed = {name: tensor + 1 for name, tensor in tensors.items()}
        held = {shard.name for shard in shards if shard.held.numel()}
        assert set(differing(shards, changed)) == held
        for shard in shards:
            shard.held.copy_(shard.of(changed[shard.name]))
        again = layers(rank, size, kv_heads)
        load(again, changed)
        for (name, ours), (_, theirs) in zip(
            model.named_parameters(), again.named_parameters(), strict=True
        ):
            assert torch.equal(ours, theirs), name
        answers.append([(s.name, "float32", s.shape, s.dim, s.start, s.stop) for s in shards])
    assert joined(answers).keys() == tensors.keys()
