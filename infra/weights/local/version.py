"""A version in a folder of its own, in Hugging Face layout.

    config.json, tokenizer.json, ...   links to the model folder
    tensor-00017.safetensors           one large tensor each
    small.safetensors                  all small ones
    model.safetensors.index.json       which tensor is in which file

The same tensors always have the same files, so that the next version can take over by hard link
what did not change.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from infra.weights.file_layout import Span, new_file, size_of

LARGE_BYTES = 1 << 20
"""A tensor of this size has a file of its own."""

INDEX = "model.safetensors.index.json"
_SMALL = "small.safetensors"
_NOT_LINKED = (".safetensors", ".index.json", ".bin", ".pt", ".pth", ".gguf")

Layout = Mapping[str, tuple[str, tuple[int, ...]]]
"""Dtype and shape by name."""


@dataclass(frozen=True, slots=True)
class Shelf:
    """One file, and where its tensors lie in it."""

    head: bytes
    spans: Mapping[str, Span]

    @property
    def num_bytes(self) -> int:
        """Of the file."""
        return max((span.end for span in self.spans.values()), default=len(self.head))


@dataclass(frozen=True, slots=True)
class Version:
    """Verified, whole, and not changed any more."""

    number: int
    fingerprint: str
    folder: Path
    shelves: Mapping[str, Shelf]
    """By file name."""
    entries: Mapping[str, str]
    """Of the fingerprint, by tensor name."""

    @property
    def files(self) -> tuple[Path, ...]:
        """All safetensors files."""
        return tuple(self.folder / name for name in self.shelves)


def shelves_of(layout: Layout) -> dict[str, Shelf]:
    """The files that tensors are laid into, by file name."""
    files: dict[str, dict[str, tuple[str, tuple[int, ...]]]] = {}
    for index, name in enumerate(sorted(layout), start=1):
        large = size_of(*layout[name]) >= LARGE_BYTES
        file = f"tensor-{index:05d}.safetensors" if large else _SMALL
        files.setdefault(file, {})[name] = layout[name]
    return {file: Shelf(*new_file(tensors)) for file, tensors in files.items()}


def finish(folder: Path, shelves: Mapping[str, Shelf], model_folder: Path) -> None:
    """Write the index, and link what else the model folder has.

    Raises:
        OSError: The disk did not take it.
    """
    where = {name: file for file, shelf in shelves.items() for name in shelf.spans}
    size = sum(span.num_bytes for shelf in shelves.values() for span in shelf.spans.values())
    index = {"metadata": {"total_size": size}, "weight_map": where}
    (folder / INDEX).write_text(json.dumps(index, indent=1, sort_keys=True))
    for path in model_folder.resolve().iterdir():
        if not path.name.endswith(_NOT_LINKED):
            (folder / path.name).symlink_to(path)
