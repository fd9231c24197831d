"""A quantisation of ours, as a package could bring it: whoever imports this registers it.

Weight only: int8 with one scale per output channel, made when a layer was loaded. Nothing of it
needs a kernel, so that vLLM's own way of loading quantised models runs on every machine.
"""

from typing import Any

import torch
from vllm.model_executor.layers.linear import LinearBase, LinearMethodBase
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.parameter import ModelWeightParameter
from vllm.model_executor.utils import replace_parameter

NAME = "warren_test_int8"


def register() -> None:
    """The entry point; the import was all there is to do."""


@register_quantization_config(NAME)
class Int8Config(QuantizationConfig):
    """All linear layers; not the embedding, nor the head."""

    def get_name(self) -> str:
        return NAME

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        return [torch.float32, torch.bfloat16]

    @classmethod
    def get_min_capability(cls) -> int:
        return 0

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Int8Config":
        return cls()

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> "Int8Linear | None":
        return Int8Linear() if isinstance(layer, LinearBase) else None


class Int8Linear(LinearMethodBase):
    def create_weights(
        self,
        layer,
        input_size_per_partition,
        output_partition_sizes,
        input_size,
        output_size,
        params_dtype,
        *,
        weight_loader,
        **attributes,
    ):
        shape = (sum(output_partition_sizes), input_size_per_partition)
        weight = ModelWeightParameter(
            data=torch.empty(shape, dtype=params_dtype),
            input_dim=1,
            output_dim=0,
            weight_loader=weight_loader,
        )
        layer.register_parameter("weight", weight)

    def process_weights_after_loading(self, layer):
        if not layer.weight.isfinite().all():
            raise ValueError("a weight is no number")
        scale = layer.weight.abs().amax(dim=1, keepdim=True) / 127
        replace_parameter(layer, "weight", (layer.weight / scale).round().to(torch.int8))
        layer.register_buffer("scale", scale.detach())

    def apply(self, layer, x, bias=None):
        return torch.nn.functional.linear(x, layer.weight * layer.scale, bias)
