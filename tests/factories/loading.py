"""From a published version, or a model folder, to tensors that an engine may load."""

from pathlib import Path

import torch

from infra.weights import tensor_file
from infra.weights.errors import WeightsCorrupt
from infra.weights.fingerprint import check_fingerprint, fingerprint
from infra.weights.prepared import PreparedWeights, joined
from schemas.control import WeightsPublished


def prepare(store_folder: Path, published: WeightsPublished, model_folder: Path) -> PreparedWeights:
    """Read a version into memory and verify it. Blocks: run it in a thread.

    Sizes and SHA-256 are checked before a byte is interpreted, the fingerprint after.

    Args:
        store_folder: Of the weight store.
        published: The manifest.
        model_folder: Config and tokenizer.

    Raises:
        WeightsCorrupt: Missing (pruned, say), damaged, or not what the manifest says.
    """
    if not published.full:
        raise WeightsCorrupt(f"version {published.version} is a delta; need a full one")
    folder = store_folder / published.folder
    files = tuple(folder / file.name for file in published.full)
    tensors = joined(
        (path, tensor_file.read(path, size_bytes=file.size_bytes, sha256=file.sha256))
        for path, file in zip(files, published.full, strict=True)
    )
    measured = fingerprint(tensors)
    check_fingerprint(published.version, measured=measured, promised=published.fingerprint)
    return PreparedWeights(
        version=published.version,
        fingerprint=measured,
        model_folder=model_folder,
        files=files,
        tensors=tensors,
    )


def starting(model_folder: Path, dtype: torch.dtype | str, *, version: int = 0) -> PreparedWeights:
    """The weights that lie in a model folder, cast as an engine of that dtype would.

    Args:
        model_folder: In Hugging Face layout, with safetensors files.
        dtype: Of the engine.
        version: To serve them as.

    Raises:
        WeightsCorrupt: No safetensors file, or a malformed one.
    """
    target = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    paths = sorted(model_folder.glob("*.safetensors"))
    if not paths:
        raise WeightsCorrupt(
            f"{model_folder} holds no safetensors file",
            hint="save the model with save_pretrained(), which writes safetensors",
        )
    tensors = {
        name: tensor.to(target) if tensor.is_floating_point() else tensor
        for name, tensor in joined((path, tensor_file.read(path)) for path in paths).items()
    }
    return PreparedWeights(
        version=version,
        fingerprint=fingerprint(tensors),
        model_folder=model_folder,
        files=(),
        tensors=tensors,
    )
