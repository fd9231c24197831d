"""A version on its way into the store: cast, compared with the one before it, cut into files."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from infra.weights import tensor_file
from infra.weights.delta.encode import encode_delta
from infra.weights.files.base import Chunks
from infra.weights.fingerprint import TIED_HEAD, entries_of, of_entries

MAX_FILE_BYTES = 1 << 30
"""Larger whole copies are cut into several files, which travel beside each other."""
MAX_DELTA_SHARE = 0.6
"""Of the full copy; a larger delta is not worth its chain."""

DELTA_FILE = "delta.bin"
ADAPTER_FILE = "adapter.bin"

Codec = Literal["step", "absolute", "full"]


@dataclass(frozen=True, slots=True)
class Base:
    """What was published last, for the next delta to start from."""

    version: int
    tensors: Mapping[str, torch.Tensor]
    """As published, in host memory; nobody changes them."""
    entries: Mapping[str, str]
    """Of the fingerprint, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """A version, ready to be written."""

    tensors: Mapping[str, torch.Tensor]
    """As published, in host memory."""
    entries: Mapping[str, str]
    full: Mapping[str, Chunks]
    """File name -> bytes; empty when only the delta is published."""
    delta: Mapping[str, Chunks]
    """Likewise; empty when there is none."""
    base_version: int | None
    """Of the delta."""
    adapter: bool = False
    """The delta is a low-rank adapter."""
    metrics: Mapping[str, float]
    """For the step's line."""

    @property
    def fingerprint(self) -> str:
        """Of the tensors."""
        return of_entries(self.entries)


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


def publication(
    tensors: Mapping[str, torch.Tensor],
    *,
    base: Base | None = None,
    keyframe: bool = True,
    codec: Codec = "step",
) -> Publication:
    """Encode a version.

    Args:
        tensors: From `casted`.
        base: What a delta starts from: the same names, dtypes and shapes. None: there is none.
        keyframe: All of it is wanted, too. It is written in any case when the delta would exceed
            `MAX_DELTA_SHARE` of it; then there is no delta.
        codec: How the delta tells of a changed element: by the difference, by its new value, or
            `full`, not at all.
    """
    started = time.monotonic()
    encoded = None
    if base is not None and codec != "full":
        encoded = encode_delta(base.tensors, tensors, mode=codec)
    entries = entries_of(tensors) if encoded is None else encoded.entries
    metrics = {"time/encode_s": time.monotonic() - started}
    delta: dict[str, Chunks] = {}
    if encoded is not None:
        share = encoded.size_bytes / max(1, encoded.full_bytes)
        num_elements = sum(tensor.numel() for tensor in tensors.values())
        changed = encoded.num_changed / max(1, num_elements)
        metrics |= {"weights/delta_share": share, "weights/changed_share": changed}
        if share <= MAX_DELTA_SHARE:
            delta = {DELTA_FILE: encoded.body}
    return Publication(
        tensors=tensors,
        entries=entries,
        full=_whole(tensors) if keyframe or not delta else {},
        delta=delta,
        base_version=base.version if base is not None and delta else None,
        metrics=metrics,
    )


def adapted(
    tensors: Mapping[str, torch.Tensor],
    adapter: Mapping[str, torch.Tensor],
    *,
    keyframe: bool,
    base_version: int | None,
) -> Publication:
    """A version that is told by its low-rank adapter (`infra/weights/adapter.py`).

    Args:
        tensors: From `casted`, the adapter merged in.
        adapter: Of the starting model.
        keyframe: All of it is wanted, too.
        base_version: The newest keyframe; None if there is none yet, and this must be one.
    """
    started = time.monotonic()
    entries = entries_of(tensors)
    num_bytes = sum(tensor.nbytes for tensor in tensors.values())
    share = sum(tensor.nbytes for tensor in adapter.values()) / max(1, num_bytes)
    whole = keyframe or base_version is None
    return Publication(
        tensors=tensors,
        entries=entries,
        full=_whole(tensors) if whole else {},
        delta={} if base_version is None else {ADAPTER_FILE: tensor_file.chunks(adapter)},
        base_version=base_version,
        adapter=base_version is not None,
        metrics={
            "time/encode_s": time.monotonic() - started,
            "weights/delta_share": share,
        },
    )


def _whole(tensors: Mapping[str, torch.Tensor]) -> dict[str, Chunks]:
    return {name: tensor_file.chunks(part) for name, part in filed(tensors, MAX_FILE_BYTES)}


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
