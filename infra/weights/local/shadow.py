"""A version in the making, beside the one that is held.

from the held version: a file is copied when the first tensor in it changes; the others are linked
from a full one:       every tensor is copied out of the store's files

Nothing is believed until `finished`: it compares the digest of each tensor that was written.
"""

import errno
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import xxhash

from infra.weights.errors import WeightsCorrupt
from infra.weights.file_layout import ITEM_BYTES, Span, read_layout
from infra.weights.fingerprint import check_fingerprint, entry, of_entries
from infra.weights.local.version import Shelf, Version, finish, shelves_of

_BLOCK_BYTES = 8 << 20
_MAX_THREADS = 8
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}

Bits = np.ndarray[Any, Any]
T = TypeVar("T")


class Change(Protocol):
    """A delta, or an adapter."""

    @property
    def entries(self) -> Mapping[str, str] | None:
        """Of the state that it leads to, if it tells."""

    @property
    def changed(self) -> frozenset[str]:
        """Names of the tensors that it writes to."""

    def apply(self, name: str, state: Bits) -> None:
        """Change one tensor in place."""


class Shadow:
    """Tensors on their way to a new version. `from_held` and `from_files` make it.

    Args:
        folder: Empty, and its own.
        shelves: Files and what lies where.
        base: The version that files are taken over from; None if all are written anew.
        check: Called between tensors; what it raises ends the work.
    """

    def __init__(
        self,
        folder: Path,
        shelves: Mapping[str, Shelf],
        base: Version | None,
        check: Callable[[], None],
    ) -> None:
        self._folder = folder
        self._shelves = shelves
        self._base = base
        self._check = check
        self._file_of = {name: file for file, shelf in shelves.items() for name in shelf.spans}
        self._mapped: dict[str, Bits] = {}

    @classmethod
    def from_held(cls, folder: Path, held: Version, check: Callable[[], None]) -> "Shadow":
        """Begin with the version that is held."""
        return cls(folder, held.shelves, held, check)

    @classmethod
    def from_files(cls, folder: Path, paths: Iterable[Path], check: Callable[[], None]) -> "Shadow":
        """Begin with the safetensors files of a full version.

        Raises:
            WeightsCorrupt: Malformed, or a tensor is in two of them.
            OSError: The disk did not take the copy.
        """
        found: dict[str, tuple[Path, Span]] = {}
        for path in paths:
            spans = _read_spans(path)
            if twice := found.keys() & spans.keys():
                raise WeightsCorrupt(f"{path} repeats {min(twice)!r} of another file")
            found |= {name: (path, span) for name, span in spans.items()}
        layout = {name: (span.dtype, span.shape) for name, (_, span) in found.items()}
        shadow = cls(folder, shelves_of(layout), None, check)
        shadow._copy(found)
        return shadow

    @property
    def kinds(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Dtype and shape by name."""
        return {name: self._kind(name) for name in self._file_of}

    def apply(self, delta: Change) -> None:
        """Change tensors in place.

        Raises:
            WeightsCorrupt: It is for other tensors, or damaged.
            OSError: The disk did not take the copy.
        """
        if delta.entries is not None:
            self._compare(delta.entries)
        files = {self._file_of[name] for name in delta.changed} - self._mapped.keys()
        self._each(sorted(files), self._write_anew)
        self._each(sorted(delta.changed), lambda name: delta.apply(name, self._bits(name)))

    def finished(
        self, *, number: int, entries: Mapping[str, str] | None, fingerprint: str, model: Path
    ) -> Version:
        """Verify, take over what did not change, and end.

        Args:
            number: The version.
            entries: What the last delta says of the state that it leads to; None without one.
            fingerprint: What the manifest says.
            model: Folder with config and tokenizer.

        Raises:
            WeightsCorrupt: A tensor, or the whole, is not what it should be.
            OSError: The disk did not take it.
        """
        measured = dict(self._base.entries) if self._base is not None else {}
        written = [name for file in self._mapped for name in self._shelves[file].spans]
        measured.update(zip(written, self._each(written, self._entry), strict=True))
        self._mapped.clear()
        if entries is not None and (wrong := measured.items() ^ dict(entries).items()):
            raise WeightsCorrupt(
                f"{min(wrong)[0]!r} is not what version {number} has after its delta: "
                f"another base, or damaged"
            )
        check_fingerprint(number, measured=of_entries(measured), promised=fingerprint)
        if self._base is not None:
            for file in self._shelves:
                if not (self._folder / file).exists():
                    _take_over(self._base.folder / file, self._folder / file)
        finish(self._folder, self._shelves, model)
        return Version(number, fingerprint, self._folder, self._shelves, measured)

    def _copy(self, found: Mapping[str, tuple[Path, Span]]) -> None:
        def copy(name: str) -> None:
            path, span = found[name]
            file = self._file_of[name]
            _copy_range(path, span, self._folder / file, self._span(name).begin)

        for file, shelf in self._shelves.items():
            (self._folder / file).write_bytes(shelf.head)
        self._each(found, copy)
        for file in self._shelves:
            self._map(file)

    def _compare(self, entries: Mapping[str, str]) -> None:
        """The delta has the same names, dtypes and shapes."""
        ours = {name: entry(*self._kind(name), "") for name in self._file_of}
        theirs = {name: f"{text.rpartition(' ')[0]} " for name, text in entries.items()}
        if odd := ours.items() ^ theirs.items():
            raise WeightsCorrupt(f"the delta is of other tensors: {min(odd)[0]!r} differs")

    def _write_anew(self, file: str) -> None:
        assert self._base is not None
        # Written, not only mapped: a full disk then is an error, and no signal that kills.
        shutil.copyfile(self._base.folder / file, self._folder / file)
        self._map(file)

    def _map(self, file: str) -> None:
        self._mapped[file] = np.memmap(self._folder / file, np.uint8, "r+")

    def _bits(self, name: str) -> Bits:
        span = self._span(name)
        width = ITEM_BYTES[span.dtype]
        return self._mapped[self._file_of[name]][span.begin : span.end].view(f"<u{width}")

    def _entry(self, name: str) -> str:
        return entry(*self._kind(name), xxhash.xxh3_128_hexdigest(self._bits(name).data))

    def _span(self, name: str) -> Span:
        return self._shelves[self._file_of[name]].spans[name]

    def _kind(self, name: str) -> tuple[str, tuple[int, ...]]:
        span = self._span(name)
        return span.dtype, span.shape

    def _each(self, names: Iterable[str], do: Callable[[str], T]) -> list[T]:
        def one(name: str) -> T:
            self._check()
            return do(name)

        with ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1)) as pool:
            return list(pool.map(one, names))


def _read_spans(path: Path) -> dict[str, Span]:
    with _reading(path), path.open("rb") as file:
        descriptor = file.fileno()
        return read_layout(
            path,
            lambda begin, end: os.pread(descriptor, end - begin, begin),
            os.fstat(descriptor).st_size,
        )


def _copy_range(source: Path, span: Span, target: Path, offset: int) -> None:
    with target.open("r+b") as copy:
        copy.seek(offset)
        for begin in range(span.begin, span.end, _BLOCK_BYTES):
            size = min(_BLOCK_BYTES, span.end - begin)
            with _reading(source), source.open("rb") as file:
                file.seek(begin)
                block = file.read(size)
            if len(block) != size:
                raise WeightsCorrupt(f"{source} ended while it was read")
            copy.write(block)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """What goes wrong with the store's file is not the cache's fault."""
    try:
        yield
    except OSError as error:
        raise WeightsCorrupt(f"{path} cannot be read: {error.strerror or error}") from error


def _take_over(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copyfile(source, target)
