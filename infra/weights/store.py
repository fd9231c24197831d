"""The weight store: a folder that trainer and rollout workers see.

    <store>/manifests/00000012.json        what version 12 is, for ever
    <store>/v00000012.i3.5f0c9a1e/*.safetensors   its tensors, until pruned

Nothing is changed in place: a version is written beside, made durable, renamed, and only then
named by its manifest.
"""

import errno
import logging
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from infra.runs.durable import sync
from infra.runs.failpoints import FailPoint, reach
from infra.weights.errors import StoreFailed, StoreUnusable, VersionExists
from infra.weights.manifest import Manifests
from schemas.control import WeightFile, WeightsPublished

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

MAX_FILE_BYTES = 4 << 30
"""Larger versions are cut into several files."""

_VERSION = re.compile(r"(?:\.partial-)?v(\d+)\.i\d+\.[0-9a-f]+")
_TRASH = re.compile(r"\.trash-(?:manifests|(?:partial-)?v\d+\.i\d+\.[0-9a-f]+)")


class WeightStore:
    """Policy versions in a folder. One trainer writes, anyone reads.

    Args:
        folder: Created when the first version is published, or by `check`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._manifests = Manifests(folder / "manifests")

    @property
    def folder(self) -> Path:
        """Where the versions lie."""
        return self._folder

    def check(self) -> None:
        """Write and remove a small file.

        Raises:
            StoreUnusable: With what to do about it.
        """
        probe = self._folder / f".probe-{secrets.token_hex(4)}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            probe.write_bytes(b"\0" * 4096)
            sync(self._folder)
            probe.unlink()
        except OSError as error:
            raise StoreUnusable(
                f"cannot write to the weight store {self._folder}: {error.strerror or error}",
                hint="make the folder writable, free some space, or set [weights] store",
            ) from error

    def newest(self, *, below: int | None = None) -> WeightsPublished | None:
        """The manifest with the highest version, or the highest below one; None without any."""
        found = self._manifests.newest_first()
        return next((one for one in found if below is None or one.version < below), None)

    def manifest(self, version: int) -> WeightsPublished | None:
        """What a version is, even when its files are pruned; None when it never was.

        Raises:
            WeightsCorrupt: The manifest is unreadable.
        """
        return self._manifests.read(version)

    def publish(
        self,
        tensors: "Mapping[str, torch.Tensor]",
        *,
        version: int,
        run_id: str,
        incarnation: int,
        step: int,
        dtype: "torch.dtype | str",
    ) -> WeightsPublished:
        """Put a version into the store, durably, and return what is to be broadcast.

        Args:
            tensors: By Hugging Face name, any device; tensors that share memory are written once.
            version: Must be new.
            run_id: Of the run.
            incarnation: Of the trainer.
            step: Optimizer steps behind it.
            dtype: Of the published floating-point tensors.

        Raises:
            VersionExists: The version has a manifest already.
            StoreFailed: The disk did not take it; nothing of it is visible.
        """
        from infra.weights.fingerprint import fingerprint
        from infra.weights.publication import casted, filed, write_files

        if self._manifests.read(version) is not None:
            raise VersionExists(f"version {version} is already in {self._folder}")
        ready = casted(tensors, dtype)
        name = f"v{version:08d}.i{incarnation}.{secrets.token_hex(4)}"
        partial = self._folder / f".partial-{name}"
        final = self._folder / name
        reach(FailPoint.WEIGHTS_WRITE)
        try:
            partial.mkdir(parents=True)
            files = write_files(partial, filed(ready, MAX_FILE_BYTES))
            sync(partial)
            partial.rename(final)
            sync(self._folder)
            reach(FailPoint.WEIGHTS_NAMED)
            published = WeightsPublished(
                run_id=run_id,
                version=version,
                incarnation=incarnation,
                step=step,
                folder=name,
                full=_described(files),
                fingerprint=fingerprint(ready),
            )
            self._manifests.create(published)
        except BaseException as error:
            self._remove(partial)
            self._remove(final)
            if isinstance(error, OSError) or _is_disk_error(error):
                raise StoreFailed(
                    f"cannot write version {version} to {self._folder}: {error}", hint=_hint(error)
                ) from error
            raise
        return published

    def prune(self, keep: int) -> list[int]:
        """Remove the files of all but the newest versions, and leavings of unfinished ones.

        Manifests stay: a replayed step compares its fingerprint with them. A reader that
        loses the race finds the version missing, and takes the newest.

        Args:
            keep: Versions whose files stay; the newest always does.

        Returns:
            Versions whose files were removed.
        """
        newest = list(islice(self._manifests.newest_first(), max(1, keep)))
        if not newest:
            return []
        kept = {manifest.folder for manifest in newest}
        removed: set[int] = set()
        for path, version in self._folders():
            if path.name in kept or (version is not None and version > newest[0].version):
                continue
            self._remove(path)
            if version is not None and not path.name.startswith("."):
                removed.add(version)
        return sorted(removed)

    def clear(self) -> None:
        """Remove every version and manifest, and nothing else: the folder may be a shared one."""
        for path in (*(path for path, _ in self._folders()), self._folder / "manifests"):
            self._remove(path)

    def _folders(self) -> list[tuple[Path, int | None]]:
        """Folders that are ours by their names, with their versions (None: on its way out)."""
        if not self._folder.is_dir():
            return []
        found = [path for path in sorted(self._folder.iterdir()) if path.is_dir()]
        versions = [(path, _VERSION.fullmatch(path.name)) for path in found]
        return [
            (path, int(match[1]) if match else None)
            for path, match in versions
            if match or _TRASH.fullmatch(path.name)
        ]

    def _remove(self, path: Path) -> None:
        trash = path.with_name(f".trash-{path.name.lstrip('.')}")
        try:
            if not path.name.startswith(".trash-"):
                path.rename(trash)
            else:
                trash = path
            shutil.rmtree(trash)
        except FileNotFoundError:
            return
        except OSError as error:
            logger.warning("cannot remove %s: %s", trash, error.strerror or error)


def _is_disk_error(error: BaseException) -> bool:
    """Safetensors reports a failed write as an error of its own."""
    return type(error).__name__ == "SafetensorError"


def _described(files: "Iterable[tuple[str, int, str]]") -> tuple[WeightFile, ...]:
    return tuple(WeightFile(name=name, size_bytes=size, sha256=sha) for name, size, sha in files)


def _hint(error: BaseException) -> str:
    full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
    if full or os.strerror(errno.ENOSPC) in str(error):
        return "the disk is full: free some space, lower [weights] keep, or move [weights] store"
    return "look at the folder's rights and its disk, or set [weights] store to another one"
