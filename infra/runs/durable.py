"""Making what was written survive a power cut."""

import os
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
