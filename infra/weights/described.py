"""Published weights, verified but not loaded: for engines without tensors, and without torch.

A delta tells the digest of every tensor of the state that it leads to, so the newest one is enough:
nothing is applied, and no version is held.
"""

import logging
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import xxhash

from infra.weights.delta.decode import parse_delta
from infra.weights.errors import WeightsCorrupt
from infra.weights.file_layout import Span, read_layout
from infra.weights.fingerprint import check_fingerprint, entry, of_entries
from infra.weights.prepared import PreparedWeights, joined
from schemas.control import WeightFile, WeightsPublished

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DescribedTensor:
    """What there is to know of a tensor without holding it."""

    entry: str
    """Dtype, shape and XXH3-128, as the fingerprint takes them."""


class Store(Protocol):
    """The part of a weight store that is used here."""

    def fetch(self, published: WeightsPublished, file: WeightFile, cache: Path) -> Path: ...


class DescribedWeights:
    """Verifies versions, and holds none.

    Args:
        store: Of the run.
        model_folder: Config and tokenizer.
    """

    def __init__(self, store: Store, *, model_folder: Path) -> None:
        self._store = store
        self._model_folder = model_folder

    def prepare(self, published: WeightsPublished) -> PreparedWeights:
        """Verify a version; its `tensors` are `DescribedTensor`s. Blocks: run it in a thread.

        Raises:
            WeightsCorrupt: Missing, damaged, or not what the manifest says.
        """
        with tempfile.TemporaryDirectory(prefix="warren-fetched-") as own:
            described = self._described(published, Path(own))
        measured = of_entries({name: tensor.entry for name, tensor in described.items()})
        check_fingerprint(published.version, measured=measured, promised=published.fingerprint)
        return PreparedWeights(
            version=published.version,
            fingerprint=measured,
            model_folder=self._model_folder,
            files=(),
            tensors=described,  # type: ignore[arg-type]
        )

    def taken(self, version: int) -> None:
        """Nothing is held."""

    def discard(self) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing is held."""

    def _described(self, published: WeightsPublished, own: Path) -> Mapping[str, DescribedTensor]:
        if published.delta:
            try:
                return self._from_delta(published, own)
            except WeightsCorrupt as error:
                if not published.full:
                    raise
                logger.warning("version %d is read in full: %s", published.version, error)
        paths = [self._store.fetch(published, file, own) for file in published.full]
        return joined((path, _read(path)) for path in paths)

    def _from_delta(self, published: WeightsPublished, own: Path) -> dict[str, DescribedTensor]:
        paths = [self._store.fetch(published, file, own) for file in published.delta]
        delta = parse_delta(b"".join(map(_bytes_of, paths)))
        return {name: DescribedTensor(text) for name, text in delta.entries.items()}


def _read(path: Path) -> dict[str, DescribedTensor]:
    data = _bytes_of(path)
    view = memoryview(data)
    spans = read_layout(path, lambda begin, end: data[begin:end], len(data))
    return {name: _describe(span, view) for name, span in spans.items()}


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise WeightsCorrupt(f"{path} cannot be read: {error.strerror or error}") from error


def _describe(span: Span, view: memoryview) -> DescribedTensor:
    digest = xxhash.xxh3_128_hexdigest(view[span.begin : span.end])
    return DescribedTensor(entry(span.dtype, span.shape, digest))
