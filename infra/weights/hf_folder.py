"""Weights out of a Hugging Face folder: a starting model, or what a checkpoint left for others."""

from pathlib import Path

import torch

from infra.weights import tensor_file
from infra.weights.errors import WeightsCorrupt
from infra.weights.fingerprint import check_fingerprint, fingerprint
from infra.weights.prepared import PreparedWeights, joined


def prepare_folder(folder: Path, *, dtype: str, version: int, promised: str) -> PreparedWeights:
    """Read a folder into memory, as the version that it is said to be. Blocks.

    Args:
        folder: With config, tokenizer and safetensors files.
        dtype: Of the run's published weights.
        version: To serve them as.
        promised: The fingerprint of that version.

    Raises:
        WeightsCorrupt: It holds other weights, or none that can be read.
    """
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise WeightsCorrupt(f"{folder} holds no safetensors file")
    target = getattr(torch, dtype)
    tensors = {
        name: tensor.to(target) if tensor.is_floating_point() else tensor
        for name, tensor in joined((path, tensor_file.read(path)) for path in paths).items()
    }
    check_fingerprint(version, measured=fingerprint(tensors), promised=promised)
    return PreparedWeights(
        version=version, fingerprint=promised, model_folder=folder, files=(), tensors=tensors
    )
