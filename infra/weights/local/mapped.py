"""Tensors as they lie in a version's files: memory is taken only for what is looked at."""

from pathlib import Path

import torch

from infra.weights.local.version import Shelf, Version


def mapped(version: Version) -> dict[str, torch.Tensor]:
    """The tensors of a version by name; they stay readable when its files are removed.

    Whoever writes to one changes a copy of its own, never the files.
    """
    tensors: dict[str, torch.Tensor] = {}
    for name, shelf in version.shelves.items():
        tensors |= _tensors(version.folder / name, shelf)
    return tensors


def _tensors(path: Path, shelf: Shelf) -> dict[str, torch.Tensor]:
    whole = torch.from_file(str(path), shared=False, size=shelf.num_bytes, dtype=torch.uint8)
    tensors: dict[str, torch.Tensor] = {}
    for name, span in shelf.spans.items():
        tensors[name] = whole[span.begin : span.end].view(getattr(torch, span.dtype))
        tensors[name] = tensors[name].reshape(span.shape)
    return tensors
