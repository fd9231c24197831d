"""Making what was written survive a power cut."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path


def sync(path: Path) -> None:
    """Wait until the disk has a file's content, or a folder's entries. Blocks.

    Raises:
        OSError: The disk did not take it.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write(path: Path, chunks: Iterable[bytes | memoryview]) -> tuple[int, str]:
    """Write a new file and wait until the disk has its content. Blocks.

    Returns:
        Size in bytes and SHA-256.

    Raises:
        OSError: It exists, or the disk did not take it; what was written of it stays.
    """
    digest = hashlib.sha256()
    with path.open("xb") as file:
        for chunk in chunks:
            file.write(chunk)
            file.flush()
            digest.update(chunk)
        os.fsync(file.fileno())
        return file.tell(), digest.hexdigest()
