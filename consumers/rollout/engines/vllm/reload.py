"""Published tensors into a model of vLLM that keeps others: quantised, say.

What such a model holds cannot be compared with what was published. vLLM's own layerwise reload
makes it anew: each layer is put back into the form that checkpoints load into, filled, processed
(where a method quantises), and copied to where the old one was.
"""

import logging
from collections.abc import Iterable

import torch
from vllm.config import ModelConfig
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

from infra.weights.fingerprint import entries_of, of_entries

_WARNS_OF_TIED = logging.getLogger("vllm.model_executor.model_loader.reload.layerwise")


def reload(
    model: torch.nn.Module, config: ModelConfig, tensors: Iterable[tuple[str, torch.Tensor]]
) -> list[str]:
    """Load tensors as vLLM loads a checkpoint, in place of what is there.

    Args:
        model: Of vLLM; broken if this raises.
        config: Of the model.
        tensors: By Hugging Face name, all of them.

    Returns:
        Names of parameters of layers into which nothing was loaded, nor into another that they
        share their memory with.
    """
    _WARNS_OF_TIED.setLevel(logging.ERROR)
    with torch.no_grad():
        initialize_layerwise_reload(model)
        wanted = {name for name, _ in model.named_parameters()}
        loaded: set[str] = model.load_weights(tensors) or set()  # type: ignore[operator]
        finalize_layerwise_reload(model, config)
    held = dict(model.named_parameters(remove_duplicate=False))
    filled = {held[name].data_ptr() for name in loaded & held.keys()}
    layers = {_layer(name) for name in loaded}
    return sorted(
        name
        for name in wanted - loaded
        if _layer(name) not in layers and (name not in held or held[name].data_ptr() not in filled)
    )


def shared(model: torch.nn.Module) -> set[str]:
    """Names of parameters that are another one's, too: a head that is tied to the embedding."""
    named = {name for name, _ in model.named_parameters()}
    return {name for name, _ in model.named_parameters(remove_duplicate=False)} - named


def quantised(model: torch.nn.Module) -> list[str]:
    """Names of layers that are held otherwise than they are loaded."""
    methods = {name: getattr(layer, "quant_method", None) for name, layer in model.named_modules()}
    return [
        name
        for name, method in methods.items()
        if method is not None and not type(method).__name__.startswith("Unquantized")
    ]


def digest(model: torch.nn.Module) -> str:
    """One number for the parameters and buffers of all layers that have parameters, as they lie in
    memory. What a kernel keeps elsewhere is not in it."""
    tensors: dict[str, torch.Tensor] = {}
    for prefix, layer in model.named_modules():
        parameters = dict(layer.named_parameters(prefix, recurse=False))
        if parameters:
            tensors |= parameters | dict(layer.named_buffers(prefix, recurse=False))
    return of_entries(entries_of(tensors))


def _layer(name: str) -> str:
    return name.rpartition(".")[0]
