"""Tensors on their way into the store: cast, shared memory written once, cut into files."""

from collections.abc import Mapping
from pathlib import Path

import torch

from infra.runs.failpoints import FailPoint, reach
from infra.weights import tensor_file
from infra.weights.fingerprint import TIED_HEAD


def casted(
    tensors: Mapping[str, torch.Tensor], dtype: torch.dtype | str
) -> dict[str, torch.Tensor]:
    """Copy to host memory in the published dtype; of tensors that share memory, the first stays.

    The head counts as last, so that a tied one is filed under the embedding's name.
    """
    target = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    seen: set[tuple[object, ...]] = set()
    ready: dict[str, torch.Tensor] = {}
    for name in sorted(tensors, key=lambda name: (name == TIED_HEAD, name)):
        tensor = tensors[name].detach()
        if tensor.numel():
            place = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride())
            if place in seen:
                continue
            seen.add(place)
        kind = target if tensor.is_floating_point() else tensor.dtype
        ready[name] = tensor.to("cpu", kind).contiguous()
        if ready[name].untyped_storage().nbytes() != ready[name].nbytes:
            ready[name] = ready[name].clone()
    return ready


def filed(
    tensors: Mapping[str, torch.Tensor], max_file_bytes: int
) -> list[tuple[str, dict[str, torch.Tensor]]]:
    """Name the files and say what goes where, in Hugging Face's naming."""
    parts: list[dict[str, torch.Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if parts[-1] and size + tensor.nbytes > max_file_bytes:
            parts.append({})
            size = 0
        parts[-1][name] = tensor
        size += tensor.nbytes
    if len(parts) == 1:
        return [("model.safetensors", parts[0])]
    return [
        (f"model-{index:05d}-of-{len(parts):05d}.safetensors", part)
        for index, part in enumerate(parts, start=1)
    ]


def write_files(
    folder: Path, parts: list[tuple[str, dict[str, torch.Tensor]]]
) -> list[tuple[str, int, str]]:
    """Write every file durably; name, size in bytes and SHA-256 of each."""
    written = [(name, *tensor_file.write(folder / name, part)) for name, part in parts]
    reach(FailPoint.WEIGHTS_WRITTEN)
    return written
