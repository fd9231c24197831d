"""An adapter as a change of a version: the starting model's tensors, with it added."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from infra.weights import tensor_file
from infra.weights.adapter import merged, modules_of
from infra.weights.errors import WeightsCorrupt
from infra.weights.file_layout import read_layout

Bits = np.ndarray[Any, Any]


class AdapterChange:
    """Writes what an adapter changes, whatever stood there before.

    Args:
        path: The adapter.
        model_folder: The starting model.
        kinds: Dtype and shape of the version's tensors, by name.

    Raises:
        WeightsCorrupt: Malformed, or of another model.
    """

    entries: None = None
    """It tells no digest; the manifest's fingerprint does."""

    def __init__(
        self, path: Path, model_folder: Path, kinds: Mapping[str, tuple[str, tuple[int, ...]]]
    ) -> None:
        self._adapter = tensor_file.read(path)
        self._model_folder = model_folder
        self._kinds = kinds
        self.changed = frozenset(f"{module}.weight" for module in modules_of(self._adapter))
        if unknown := sorted(self.changed - kinds.keys()):
            raise WeightsCorrupt(f"the adapter changes {unknown[0]}, which the model has not")

    def apply(self, name: str, state: Bits) -> None:
        """Write one tensor, as the unsigned integers of its bytes."""
        start = self._starting[name]
        base = start.to(getattr(torch, self._kinds[name][0]))
        module = name.removesuffix(".weight")
        own = {key: one for key, one in self._adapter.items() if key.startswith(f"{module}.lora_")}
        for _, tensor in merged({name: base}, own):
            state.view(np.uint8)[:] = tensor.reshape(-1).view(torch.uint8).numpy()

    @cached_property
    def _starting(self) -> dict[str, torch.Tensor]:
        """Mapped, so that memory is taken only for what is looked at."""
        tensors: dict[str, torch.Tensor] = {}
        for path in sorted(self._model_folder.glob("*.safetensors")):
            tensors |= _mapped(path)
        if missing := sorted(self.changed - tensors.keys()):
            raise WeightsCorrupt(
                f"{self._model_folder} has no {missing[0]}",
                hint="trainer and workers must begin with the same [model] path",
            )
        return tensors


def _mapped(path: Path) -> dict[str, torch.Tensor]:
    try:
        size = path.stat().st_size
        whole = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
        view = whole.numpy().data
    except (OSError, RuntimeError) as error:
        raise WeightsCorrupt(f"{path} cannot be read: {error}") from error
    spans = read_layout(path, lambda begin, end: bytes(view[begin:end]), size)
    tensors = {}
    for name, span in spans.items():
        raw, dtype = whole[span.begin : span.end], getattr(torch, span.dtype)
        if span.begin % dtype.itemsize:
            raw = raw.clone()
        tensors[name] = raw.view(dtype).reshape(span.shape)
    return tensors
