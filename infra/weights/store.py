"""The weight store: what trainer and rollout workers see of policy versions.

    <store>/manifests/00000012.json            what version 12 is, for ever
    <store>/v00000012.i3.5f0c9a1e/delta.bin    what changed since the version before, until pruned
    <store>/v00000012.i3.5f0c9a1e/*.safetensors   all of it, if 12 is a keyframe

Nothing is changed in place. A version's files are there to stay before its manifest names them,
and of those who write the same manifest one succeeds.
"""

import errno
import logging
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self

from infra.runs.failpoints import FailPoint, reach
from infra.weights.errors import DISK_FULL, ManifestUnsure, StoreFailed, VersionExists
from infra.weights.files.base import Files
from infra.weights.files.local import LocalFiles
from infra.weights.manifest import Manifests
from schemas.control import WeightFile, WeightsPublished

if TYPE_CHECKING:
    import torch

    from infra.weights.publication import Base, Codec, Publication

logger = logging.getLogger(__name__)

_VERSION = re.compile(r"(?:\.partial-)?v(\d+)\.i\d+\.[0-9a-f]+")
_TRASH = re.compile(r"\.trash-(?:manifests|(?:partial-)?v\d+\.i\d+\.[0-9a-f]+)")


class WeightStore:
    """Policy versions. One trainer writes, anyone reads; everything blocks. Made by `at`.

    Args:
        files: Where they lie.
    """

    def __init__(self, files: Files) -> None:
        self.files = files
        self.manifests = Manifests(files)
        self._seen: dict[int, WeightsPublished] = {}

    @classmethod
    def at(cls, location: str | Path) -> Self:
        """The store in a folder, or behind a URL that fsspec knows. Nothing is looked at yet.

        Raises:
            ConfigError: There is no driver for the URL, or it is not installed.
        """
        text = str(location)
        if text.startswith("file://"):
            text = text.removeprefix("file://")
        if "://" not in text:
            return cls(LocalFiles(Path(text)))
        from infra.weights.files.remote import RemoteFiles

        return cls(RemoteFiles(text))

    @property
    def where(self) -> str:
        """For people: its path or URL, without secrets."""
        return self.files.where

    def check(self) -> None:
        """Write and remove a small file.

        Raises:
            StoreUnusable: With what to do about it.
        """
        self.files.check()

    def newest(self, *, below: int | None = None) -> WeightsPublished | None:
        """The manifest with the highest version, or the highest below one; None without any.

        Raises:
            StoreFailed: The store cannot be read, now.
        """
        found = self.manifests.newest_first()
        return next((one for one in found if below is None or one.version < below), None)

    def manifest(self, version: int) -> WeightsPublished | None:
        """What a version is, even when its files are pruned; None when it never was.

        Raises:
            WeightsCorrupt: The manifest says nothing sensible.
            StoreFailed: The store cannot be read, now.
        """
        return self.manifests.read(version)

    def fetch(self, published: WeightsPublished, file: WeightFile, cache: Path) -> Path:
        """A local path of one file of a version, whose size and SHA-256 are right.

        Args:
            published: The version.
            file: Of its `full` or `delta`.
            cache: Local folder for copies of what is far away; they belong to the caller. From a
                folder, the stored file itself is given, which may be pruned while it is used.

        Raises:
            WeightsCorrupt: Missing (pruned, say), damaged, or not to be had.
            OSError: The cache did not take the copy.
        """
        return self.files.fetch(published.folder, file, cache)

    def publish(
        self,
        tensors: "Mapping[str, torch.Tensor]",
        *,
        version: int,
        run_id: str,
        incarnation: int,
        step: int,
        dtype: "torch.dtype | str",
        base: "Base | None" = None,
        keyframe: bool = True,
        codec: "Codec" = "step",
    ) -> WeightsPublished:
        """Encode a version and `put` it, for who needs no base of the next one.

        Args:
            tensors: By Hugging Face name, any device; tensors that share memory are written once.
            dtype: Of the published floating-point tensors.

        The others, and what is raised: see `put` and `publication`.
        """
        from infra.weights.publication import casted, publication

        ready = casted(tensors, dtype)
        new = publication(ready, base=base, keyframe=keyframe, codec=codec)
        return self.put(new, version=version, run_id=run_id, incarnation=incarnation, step=step)

    def put(
        self, new: "Publication", *, version: int, run_id: str, incarnation: int, step: int
    ) -> WeightsPublished:
        """Put a version into the store, durably, and return what is to be broadcast.

        Args:
            new: Its files.
            version: Must be new.
            run_id: Of the run.
            incarnation: Of the trainer.
            step: Optimizer steps behind it.

        Raises:
            VersionExists: The version has a manifest already.
            StoreFailed: The store did not take it; nothing of it is visible.
        """
        if self.manifests.read(version) is not None:
            raise VersionExists(f"version {version} is already in {self.where}")
        folder = f"v{version:08d}.i{incarnation}.{secrets.token_hex(4)}"
        stays = False
        reach(FailPoint.WEIGHTS_WRITE)
        try:
            files = self.files.write(folder, {**new.delta, **new.full})
            reach(FailPoint.WEIGHTS_NAMED)
            published = WeightsPublished(
                run_id=run_id,
                version=version,
                incarnation=incarnation,
                step=step,
                folder=folder,
                full=tuple(file for file in files if file.name in new.full),
                base_version=new.base_version,
                delta=tuple(file for file in files if file.name in new.delta),
                adapter=new.adapter,
                fingerprint=new.fingerprint,
            )
            self.manifests.create(published)
            stays = True
        except ManifestUnsure:
            stays = True
            raise
        except OSError as error:
            raise StoreFailed(
                f"cannot write version {version} to {self.where}: {error}", hint=_hint(error)
            ) from error
        finally:
            if not stays:
                self.files.remove(folder)
        return published

    def prune(self, keep: int) -> list[int]:
        """Remove the files of versions before the oldest of the newest `keep` keyframes, and what
        unfinished publications left.

        Manifests stay: a replayed step compares its fingerprint with them. A reader that
        loses the race finds the version missing, and takes the newest.

        Args:
            keep: Keyframes that stay, with all versions since; the newest version always does.

        Returns:
            Versions whose files were removed.
        """
        kept = self._kept(max(1, keep))
        if not kept:
            return []
        folders, newest = {manifest.folder for manifest in kept}, kept[0].version
        removed: set[int] = set()
        for name, version in self._folders():
            if name in folders or (version is not None and version > newest):
                continue
            self.files.remove(name)
            if version is not None and not name.startswith("."):
                removed.add(version)
        return sorted(removed)

    def clear(self) -> None:
        """Remove every version and manifest, and nothing else: the folder may be a shared one."""
        self._seen.clear()
        self.manifests.clear()
        for name, _ in self._folders():
            self.files.remove(name)

    def _kept(self, keep: int) -> list[WeightsPublished]:
        """The newest versions down to the oldest keyframe that stays; each is read once."""
        kept: list[WeightsPublished] = []
        for version in sorted(self.manifests.versions(), reverse=True):
            manifest = self._seen.get(version) or self.manifests.sound(version)
            if manifest is None:
                continue
            self._seen[version] = manifest
            kept.append(manifest)
            keep -= bool(manifest.full)
            if not keep:
                break
        self._seen = {manifest.version: manifest for manifest in kept}
        return kept

    def _folders(self) -> list[tuple[str, int | None]]:
        """Folders that are ours by their names, with their versions (None: on its way out)."""
        names = self.files.names()
        versions = [(name, _VERSION.fullmatch(name)) for name in names]
        return [
            (name, int(match[1]) if match else None)
            for name, match in versions
            if match or _TRASH.fullmatch(name)
        ]


def _hint(error: OSError) -> str:
    full = error.errno in DISK_FULL
    if full or os.strerror(errno.ENOSPC) in str(error):
        return "the disk is full: free some space, lower [weights] keep, or move [weights] store"
    return "look at the store's rights, disk and network, or set [weights] store to another one"
