"""Weights that are verified and ready to be loaded."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.weights.errors import WeightsCorrupt
from schemas.control import WeightFile, WeightsPublished

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
    """By Hugging Face name, in host memory; all of them."""
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


def verified(
    store_folder: Path,
    published: WeightsPublished,
    model_folder: Path,
    *,
    read: Callable[[Path, WeightFile], Mapping[str, Any]],
    measure: Callable[[Mapping[str, Any]], str],
) -> PreparedWeights:
    """Read every file of a version, and compare the fingerprint with its manifest's.

    Raises:
        WeightsCorrupt: Not a full version, a name in two files, or another fingerprint.
    """
    if not published.full:
        raise WeightsCorrupt(f"version {published.version} is a delta; need a full one")
    folder = store_folder / published.folder
    files = tuple(folder / file.name for file in published.full)
    tensors = joined(
        (path, read(path, file)) for path, file in zip(files, published.full, strict=True)
    )
    measured = measure(tensors)
    if measured != published.fingerprint:
        raise WeightsCorrupt(
            f"version {published.version} has fingerprint {measured}, "
            f"its manifest says {published.fingerprint}"
        )
    return PreparedWeights(
        version=published.version,
        fingerprint=measured,
        model_folder=model_folder,
        files=files,
        tensors=tensors,
    )


def joined(parts: Iterable[tuple[Path, Mapping[str, Any]]]) -> dict[str, Any]:
    """The tensors of several files by name; raises `WeightsCorrupt` when one comes twice."""
    whole: dict[str, Any] = {}
    for path, part in parts:
        if twice := whole.keys() & part.keys():
            raise WeightsCorrupt(f"{path} repeats {min(twice)!r} of another file")
        whole.update(part)
    return whole
