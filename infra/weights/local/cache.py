"""The folder in which a worker keeps weights: its own while it lives, removed once it has gone.

    <place>/warren-weights-5f0c9a1e        versions
    <place>/warren-weights-5f0c9a1e.lock   locked by the owner: who gets the lock may remove both

A lock ends with its process, however that ends, and is seen from other containers on the machine,
which a process id is not.
"""

import errno
import fcntl
import logging
import os
import secrets
import shutil
import tempfile
from pathlib import Path

from infra.weights.errors import DISK_FULL, CacheFailed, CacheUnusable

logger = logging.getLogger(__name__)

SHARED_MEMORY = Path("/dev/shm")
_PREFIX = "warren-weights-"
_LOCK = ".lock"
_COPIES = 3
"""Held, in the making, and the files that it is made from."""
_MAX_TRIES = 16


class Cache:
    """A claimed folder.

    Args:
        place: In which it is made; leavings of workers that were killed are removed from there.

    Raises:
        CacheFailed: It cannot be written.
    """

    def __init__(self, place: Path) -> None:
        try:
            place.mkdir(parents=True, exist_ok=True)
            remove_leavings(place)
            self._lock, self.folder = _claimed(place)
            self.folder.mkdir(mode=0o700)
        except OSError as error:
            raise failed(place, error) from error

    def close(self) -> None:
        """Remove everything."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.with_suffix(_LOCK).unlink(missing_ok=True)
        os.close(self._lock)


def place_for(num_bytes: int, configured: str = "") -> Path:
    """Where a version of this size is kept.

    Args:
        num_bytes: Of the whole version.
        configured: `[weights] cache`.

    Returns:
        The configured folder; else shared memory, if it has room for three copies after leavings
        are removed from it; else the folder for temporary files.
    """
    if configured:
        return Path(configured).resolve()
    if SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK):
        remove_leavings(SHARED_MEMORY)
        if shutil.disk_usage(SHARED_MEMORY).free >= _COPIES * num_bytes:
            return SHARED_MEMORY
    return Path(tempfile.gettempdir())


def check_place(configured: str) -> None:
    """Try to write to `[weights] cache`, where it is set.

    Raises:
        CacheUnusable: With what to do about it.
    """
    if not configured:
        return
    place = Path(configured).resolve()
    probe = place / f"{_PREFIX}probe-{secrets.token_hex(4)}"
    try:
        place.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"\0" * 4096)
        probe.unlink()
    except OSError as error:
        raise CacheUnusable(
            f"cannot write to {place}: {error.strerror or error}",
            hint="make it writable, or set [weights] cache to another folder",
        ) from error


def remove_leavings(place: Path) -> None:
    """Remove the folders in a place whose owners have gone; those of other users stay."""
    for path in place.glob(f"{_PREFIX}*{_LOCK}"):
        try:
            lock = os.open(path, os.O_RDWR)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            folder = path.with_suffix("")
            shutil.rmtree(folder, ignore_errors=True)
            path.unlink(missing_ok=True)
            logger.info("removed %s, which a worker that was killed has left", folder)
        except OSError:
            continue  # its owner lives
        finally:
            os.close(lock)


def failed(path: Path, error: OSError) -> CacheFailed:
    """What a failed write means to the user."""
    full = error.errno in DISK_FULL
    return CacheFailed(
        f"cannot write weights to {path}: {error.strerror or error}",
        hint="free some space there, or set [weights] cache to a folder with room for three "
        "copies of the model"
        if full
        else "make it writable, or set [weights] cache to another folder",
    )


def _claimed(place: Path) -> tuple[int, Path]:
    """A lock that is ours, and the folder that it stands for."""
    for _ in range(_MAX_TRIES):
        folder = place / f"{_PREFIX}{secrets.token_hex(4)}"
        path = folder.with_suffix(_LOCK)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # between creation and lock, somebody who removes leavings may have had it
            if path.stat().st_ino == os.fstat(lock).st_ino:
                return lock, folder
        except (BlockingIOError, FileNotFoundError):
            pass
        os.close(lock)
    raise OSError(errno.EAGAIN, "no lock can be had", str(place))
