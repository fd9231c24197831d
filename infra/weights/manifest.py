"""Manifests: one small file per version, created once and never replaced.

A manifest is the `WeightsPublished` that was broadcast, so who missed the broadcast reads the
store. It is linked into place complete, after everything that it names is on disk.
"""

import errno
import logging
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from infra.runs.durable import sync
from infra.runs.failpoints import FailPoint, halves, reach
from infra.weights.errors import StoreFailed, VersionExists, WeightsCorrupt
from schemas.control import WeightsPublished

logger = logging.getLogger(__name__)

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class Manifests:
    """`<store>/manifests/<version>.json`.

    Args:
        folder: Created with the first manifest.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def create(self, published: WeightsPublished) -> None:
        """Write the manifest of a new version.

        Raises:
            VersionExists: The version has one.
            StoreFailed: The disk did not take it.
        """
        target = self._path(published.version)
        partial = self._folder / f".{target.stem}.{secrets.token_hex(4)}"
        body = published.model_dump_json(indent=1).encode()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            try:
                _write(partial, body)
                reach(FailPoint.MANIFEST_WRITTEN)
                os.link(partial, target)
            except FileExistsError:
                raise
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                if target.exists():
                    raise FileExistsError(target) from None
                partial.rename(target)
            finally:
                partial.unlink(missing_ok=True)
            sync(self._folder)
            reach(FailPoint.MANIFEST_LINKED)
        except FileExistsError:
            raise VersionExists(f"version {published.version} is already in {target}") from None
        except OSError as error:
            raise StoreFailed(
                f"cannot write {target}: {error.strerror or error}",
                hint="free some space, or point [weights] store at another disk",
            ) from error

    def read(self, version: int) -> WeightsPublished | None:
        """The manifest of a version; None when there is none.

        Raises:
            WeightsCorrupt: It says nothing sensible.
        """
        path = self._path(version)
        try:
            published = WeightsPublished.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise WeightsCorrupt(f"{path} cannot be read: {error.strerror or error}") from error
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise WeightsCorrupt(f"{path} is no manifest: {reason}") from error
        if published.version != version:
            raise WeightsCorrupt(f"{path} is of version {published.version}")
        return published

    def newest_first(self) -> Iterator[WeightsPublished]:
        """Every readable manifest; an unreadable one is skipped and named in the log."""
        for version in sorted(self.versions(), reverse=True):
            try:
                published = self.read(version)
            except WeightsCorrupt as error:
                logger.warning("skipping a manifest: %s", error)
                continue
            if published is not None:
                yield published

    def versions(self) -> list[int]:
        """Numbers that have a manifest, in no order."""
        try:
            names = [path.name for path in self._folder.iterdir()]
        except FileNotFoundError:
            return []
        stems = [name.removesuffix(".json") for name in names if name.endswith(".json")]
        return [int(stem) for stem in stems if stem.isascii() and stem.isdigit()]

    def _path(self, version: int) -> Path:
        return self._folder / f"{version:08d}.json"


def _write(path: Path, body: bytes) -> None:
    with path.open("xb") as file:
        for part in halves(FailPoint.MANIFEST_TORN, body):
            file.write(part)
            file.flush()
        os.fsync(file.fileno())
