"""Versions in a folder that trainer and rollout workers see.

Nothing is changed in place: what is new is written beside, made durable, and renamed or linked.
"""

import errno
import logging
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

from infra.runs.durable import sync, write
from infra.runs.failpoints import FailPoint, halves, reach
from infra.weights.errors import StoreUnusable
from infra.weights.files.base import Chunks, verify
from schemas.control import WeightFile

logger = logging.getLogger(__name__)

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class LocalFiles:
    """`Files` in a folder.

    Args:
        root: Created when something is written, or by `check`.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def where(self) -> str:
        """Its path."""
        return str(self._root)

    def check(self) -> None:
        """As `Files.check`."""
        probe = self._root / f".probe-{secrets.token_hex(4)}"
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            probe.write_bytes(b"\0" * 4096)
            sync(self._root)
            probe.unlink()
        except OSError as error:
            raise StoreUnusable(
                f"cannot write to the weight store {self._root}: {error.strerror or error}",
                hint="make the folder writable, free some space, or set [weights] store",
            ) from error

    def write(self, folder: str, contents: Mapping[str, Chunks]) -> tuple[WeightFile, ...]:
        """As `Files.write`; the folder appears with all its files."""
        partial = self._root / f".partial-{folder}"
        partial.mkdir(parents=True)
        files = []
        for name, chunks in contents.items():
            size_bytes, sha256 = write(partial / name, chunks)
            files.append(WeightFile(name=name, size_bytes=size_bytes, sha256=sha256))
        sync(partial)
        reach(FailPoint.WEIGHTS_WRITTEN)
        partial.rename(self._root / folder)
        sync(self._root)
        return tuple(files)

    def create(self, name: str, body: bytes) -> None:
        """As `Files.create`."""
        target = self._root / name
        partial = target.with_name(f".{target.stem}.{secrets.token_hex(4)}")
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            write(partial, halves(FailPoint.MANIFEST_TORN, body))
            reach(FailPoint.MANIFEST_WRITTEN)
            _link(partial, target)
        finally:
            partial.unlink(missing_ok=True)
        try:
            sync(target.parent)
        except OSError:
            target.unlink(missing_ok=True)
            raise
        reach(FailPoint.MANIFEST_LINKED)

    def read(self, name: str) -> bytes:
        """As `Files.read`."""
        return (self._root / name).read_bytes()

    def names(self, folder: str = "") -> list[str]:
        """As `Files.names`."""
        try:
            return sorted(path.name for path in (self._root / folder).iterdir())
        except FileNotFoundError:
            return []

    def remove(self, folder: str) -> None:
        """As `Files.remove`; it is out of sight at once."""
        self._discard(self._root / folder)
        self._discard(self._root / f".partial-{folder}")

    def fetch(self, folder: str, file: WeightFile, cache: Path) -> Path:
        """As `Files.fetch`: the stored file itself. It may be pruned while it is used."""
        return verify(self._root / folder / file.name, file)

    def _discard(self, path: Path) -> None:
        trash = path
        try:
            if not path.name.startswith(".trash-"):
                trash = path.with_name(f".trash-{path.name.lstrip('.')}")
                if trash.exists():
                    shutil.rmtree(trash)
                path.rename(trash)
            shutil.rmtree(trash)
        except FileNotFoundError:
            return
        except OSError as error:
            logger.warning("cannot remove %s: %s", trash, error.strerror or error)


def _link(source: Path, target: Path) -> None:
    """Give a file its name, exclusively wherever the file system can."""
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if target.exists():
            raise FileExistsError(target) from None
        source.rename(target)
