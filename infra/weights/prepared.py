"""Weights that are verified and ready to be loaded."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

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
    """Verified safetensors files; empty for the starting model's own."""
    tensors: "Mapping[str, torch.Tensor]"
    """By Hugging Face name, in host memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedWeights:
    """What an engine holds, measured."""

    version: int
    fingerprint: str
