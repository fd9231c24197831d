"""Weights that are verified and ready to be loaded."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.weights.errors import WeightsCorrupt

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedWeights:
    """One version in memory and on local disk, checksums verified."""

    version: int
    fingerprint: str
    model_folder: Path
    """Config and tokenizer, in Hugging Face layout."""
    files: tuple[Path, ...]
    """Verified safetensors files, all of the version, to be mapped or read while it is loaded: they
    may be gone afterwards. Empty for the starting model's own."""
    tensors: "Mapping[str, torch.Tensor]"
    """By Hugging Face name, all of them, in host memory; mapped from `files` where there are such:
    what nobody looks at takes no memory."""
    base_fingerprint: str = ""
    """What `changed` is relative to."""
    changed: frozenset[str] | None = None
    """Names that differ from the weights with `base_fingerprint`; None: any may. An engine that
    serves those may leave the others as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedWeights:
    """What an engine holds, measured."""

    version: int
    fingerprint: str


def joined(parts: Iterable[tuple[Path, Mapping[str, Any]]]) -> dict[str, Any]:
    """The tensors of several files by name; raises `WeightsCorrupt` when one comes twice."""
    whole: dict[str, Any] = {}
    for path, part in parts:
        if twice := whole.keys() & part.keys():
            raise WeightsCorrupt(f"{path} repeats {min(twice)!r} of another file")
        whole.update(part)
    return whole
