"""What the weight store needs of a place for files, and the checksums that every place promises."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from infra.weights.errors import WeightsCorrupt
from schemas.control import WeightFile

Chunks = Iterable[bytes | memoryview]
"""The bytes of one file, piece by piece, to be read once."""


class Unsure(OSError):
    """The connection broke while a file was created: it may be there, or not."""


class Files(Protocol):
    """A place for files, named by `folder` or `folder/name` below its root. Everything blocks."""

    @property
    def where(self) -> str:
        """For people: path or URL, without secrets."""
        ...

    def check(self) -> None:
        """Write and remove a small file.

        Raises:
            StoreUnusable: With what to do about it.
        """
        ...

    def write(self, folder: str, contents: Mapping[str, Chunks]) -> tuple[WeightFile, ...]:
        """Write a new folder with these files; on return it survives a power cut.

        Raises:
            OSError: Some of it may be there: `remove` it.
        """
        ...

    def create(self, name: str, body: bytes) -> None:
        """Create one small file, whole or not at all; of several who try, one succeeds.

        Raises:
            FileExistsError: Somebody else has.
            Unsure: It cannot be said whether it is there.
            OSError: It is not there.
        """
        ...

    def read(self, name: str) -> bytes:
        """One small file; `FileNotFoundError` when there is none, `OSError` for anything else."""
        ...

    def names(self, folder: str = "") -> list[str]:
        """What lies in a folder, sorted; nothing, when there is no such folder."""
        ...

    def remove(self, folder: str) -> None:
        """Remove a folder, and what an unfinished `write` left of it; failures are logged."""
        ...

    def fetch(self, folder: str, file: WeightFile, cache: Path) -> Path:
        """A local copy, or the file itself, whose size and SHA-256 are right.

        Args:
            folder: Of the version.
            file: What its manifest says.
            cache: Local folder for copies; they belong to the caller.

        Raises:
            WeightsCorrupt: Missing (pruned, say), damaged, or not to be had.
            OSError: The cache did not take the copy.
        """
        ...


def verify(path: Path, file: WeightFile) -> Path:
    """Compare a local file with its manifest; gives it back.

    Raises:
        WeightsCorrupt: Missing, unreadable, of another size or SHA-256.
    """
    try:
        with path.open("rb") as stream:
            found = stream.seek(0, 2)
            if found != file.size_bytes:
                raise WeightsCorrupt(f"{path} has {found} bytes, {file.size_bytes} were written")
            stream.seek(0)
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise WeightsCorrupt(f"{path} cannot be read: {error.strerror or error}") from error
    if digest != file.sha256:
        raise WeightsCorrupt(f"{path} has sha256 {digest}, {file.sha256} was written")
    return path
