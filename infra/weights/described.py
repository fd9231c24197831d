"""Published weights, verified but not loaded: for who holds no tensors, and without torch.

The same checks as `reader.prepare`: size and SHA-256 of every file before a byte is interpreted,
the fingerprint of the tensors after.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import xxhash

from infra.weights.errors import WeightsCorrupt
from infra.weights.file_layout import Span, read_layout
from infra.weights.fingerprint import entry, of_entries
from infra.weights.prepared import PreparedWeights, verified
from schemas.control import WeightFile, WeightsPublished


@dataclass(frozen=True, slots=True)
class DescribedTensor:
    """What there is to know of a tensor without holding it."""

    entry: str
    """Dtype, shape and XXH3-128, as the fingerprint takes them."""


def prepare(store_folder: Path, published: WeightsPublished, model_folder: Path) -> PreparedWeights:
    """Verify a version; its `tensors` are `DescribedTensor`s. Blocks: run it in a thread.

    Args:
        store_folder: Of the weight store.
        published: The manifest.
        model_folder: Config and tokenizer.

    Raises:
        WeightsCorrupt: Missing, damaged, or not what the manifest says.
    """
    return verified(store_folder, published, model_folder, read=_read, measure=_fingerprint)


def _read(path: Path, file: WeightFile) -> dict[str, DescribedTensor]:
    try:
        found = path.stat().st_size
        if found != file.size_bytes:
            raise WeightsCorrupt(f"{path} has {found} bytes, {file.size_bytes} were written")
        data = path.read_bytes()
    except OSError as error:
        raise WeightsCorrupt(f"{path} cannot be read: {error.strerror or error}") from error
    if (digest := hashlib.sha256(data).hexdigest()) != file.sha256:
        raise WeightsCorrupt(f"{path} has sha256 {digest}, {file.sha256} was written")
    return _parse(path, data)


def _fingerprint(described: Mapping[str, DescribedTensor]) -> str:
    return of_entries({name: tensor.entry for name, tensor in described.items()})


def _parse(path: Path, data: bytes) -> dict[str, DescribedTensor]:
    spans = read_layout(path, lambda begin, end: data[begin:end], len(data))
    view = memoryview(data)
    return {name: _describe(span, view) for name, span in spans.items()}


def _describe(span: Span, view: memoryview) -> DescribedTensor:
    digest = xxhash.xxh3_128_hexdigest(view[span.begin : span.end])
    return DescribedTensor(entry(span.dtype, span.shape, digest))
