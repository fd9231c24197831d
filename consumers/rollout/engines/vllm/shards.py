"""What one of vLLM's workers holds, by Hugging Face name.

vLLM fuses parameters (query, key and value; gate and up), pads the vocabulary, and with tensor
parallelism gives each worker a slice. Here every parameter is cut into views, and each view knows
which slice of which published tensor it is.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from vllm.model_executor.layers.linear import ColumnParallelLinear, RowParallelLinear
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from infra.weights.fingerprint import entry_of


@dataclass(frozen=True, slots=True)
class Shard:
    """A view on a parameter of this worker, and its place in the published tensor."""

    name: str
    held: torch.Tensor
    shape: tuple[int, ...]
    """Of the published tensor."""
    dim: int = 0
    start: int = 0

    @property
    def whole(self) -> bool:
        """Whether this worker holds all of the tensor."""
        return self.shape == tuple(self.held.shape)

    @property
    def stop(self) -> int:
        """End of the slice in its dimension."""
        return self.start + (self.held.shape[self.dim] if self.held.ndim else 1)

    def of(self, published: torch.Tensor) -> torch.Tensor:
        """The slice of a published tensor that belongs here, in the dtype of the parameter."""
        if not self.whole:
            published = published.narrow(self.dim, self.start, self.stop - self.start)
        return published.to(self.held.dtype)


def shards_of(model: torch.nn.Module) -> Iterator[Shard]:
    """All parameters of a model of vLLM; what is shared by two names comes once."""
    fused: Mapping[str, list[str]] = getattr(model, "packed_modules_mapping", {})
    for name, parameter in model.named_parameters():
        path, _, leaf = name.rpartition(".")
        prefix, _, module_name = path.rpartition(".")
        module: Any = model.get_submodule(path)
        data = parameter.data
        parts = fused.get(module_name, [])
        column = isinstance(module, ColumnParallelLinear)
        if column and len(parts) > 1 and len(getattr(module, "output_sizes", ())) == len(parts):
            names = [f"{prefix}.{part}.{leaf}" for part in parts]
            yield from _fused(names, data, module)
        elif isinstance(module, VocabParallelEmbedding):
            begin = module.shard_indices.org_vocab_start_index
            rows = data[: module.shard_indices.org_vocab_end_index - begin]
            yield Shard(name, rows, (module.org_vocab_size, *data.shape[1:]), 0, begin)
        elif column:
            yield _sliced(name, data, module, 0, module.output_size)
        elif isinstance(module, RowParallelLinear) and data.ndim > 1:
            yield _sliced(name, data, module, 1, module.input_size)
        else:
            yield Shard(name, data, tuple(data.shape))


def _fused(names: list[str], data: torch.Tensor, module: Any) -> Iterator[Shard]:
    """Parts that lie one after the other; with more workers than key-value heads, several workers
    hold the same head."""
    begin = 0
    for index, (name, size) in enumerate(zip(names, module.output_sizes, strict=True)):
        replicas = getattr(module, "num_kv_head_replicas", 1) if index else 1
        mine = size // module.tp_size
        shape = (size // replicas, *data.shape[1:])
        yield Shard(name, data[begin : begin + mine], shape, 0, module.tp_rank // replicas * mine)
        begin += mine


def _sliced(name: str, data: torch.Tensor, module: Any, dim: int, size: int) -> Shard:
    shape = (*data.shape[:dim], size, *data.shape[dim + 1 :])
    return Shard(name, data, shape, dim, module.tp_rank * data.shape[dim])


def differing(shards: list[Shard], published: Mapping[str, torch.Tensor]) -> list[str]:
    """Names of which this worker holds other bytes than its slice of the published tensor."""
    return [
        shard.name
        for shard in shards
        if entry_of(shard.held) != entry_of(shard.of(published[shard.name]))
    ]
