"""Manifests: one small file per version, created once and never replaced.

A manifest is the `WeightsPublished` that was broadcast, so who missed the broadcast reads the
store. It appears complete, after everything that it names is there to stay.
"""

import logging
from collections.abc import Iterator

from pydantic import ValidationError

from infra.weights.errors import ManifestUnsure, StoreFailed, VersionExists, WeightsCorrupt
from infra.weights.files.base import Files, Unsure
from schemas.control import WeightsPublished

logger = logging.getLogger(__name__)

_FOLDER = "manifests"


class Manifests:
    """`<store>/manifests/<version>.json`.

    Args:
        files: Of the store.
    """

    def __init__(self, files: Files) -> None:
        self._files = files

    def create(self, published: WeightsPublished) -> None:
        """Write the manifest of a new version.

        Raises:
            VersionExists: The version has one.
            ManifestUnsure: It may have been written, or not.
            StoreFailed: The store did not take it.
        """
        name = _name(published.version)
        where = f"{self._files.where}/{name}"
        try:
            self._files.create(name, published.model_dump_json(indent=1).encode())
        except FileExistsError:
            raise VersionExists(f"version {published.version} is already in {where}") from None
        except OSError as error:
            kind = ManifestUnsure if isinstance(error, Unsure) else StoreFailed
            raise kind(
                f"cannot write {where}: {error.strerror or error}",
                hint="free some space, or point [weights] store at another place",
            ) from error

    def read(self, version: int) -> WeightsPublished | None:
        """The manifest of a version; None when there is none.

        Raises:
            WeightsCorrupt: It says nothing sensible.
            StoreFailed: It cannot be read, now.
        """
        name = _name(version)
        where = f"{self._files.where}/{name}"
        try:
            published = WeightsPublished.model_validate_json(self._files.read(name))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreFailed(f"{where} cannot be read: {error.strerror or error}") from error
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise WeightsCorrupt(f"{where} is no manifest: {reason}") from error
        if published.version != version:
            raise WeightsCorrupt(f"{where} is of version {published.version}")
        return published

    def newest_first(self) -> Iterator[WeightsPublished]:
        """Every sound manifest; a damaged one is skipped and named in the log.

        Raises:
            StoreFailed: The store cannot be read, now.
        """
        for version in sorted(self.versions(), reverse=True):
            published = self.sound(version)
            if published is not None:
                yield published

    def sound(self, version: int) -> WeightsPublished | None:
        """As `read`, but a damaged one counts as none, and is named in the log."""
        try:
            return self.read(version)
        except WeightsCorrupt as error:
            logger.warning("skipping a manifest: %s", error)
            return None

    def versions(self) -> list[int]:
        """Numbers that have a manifest, in no order.

        Raises:
            StoreFailed: The store cannot be read, now.
        """
        try:
            names = self._files.names(_FOLDER)
        except OSError as error:
            raise StoreFailed(
                f"the weight store {self._files.where} cannot be read: {error.strerror or error}"
            ) from error
        stems = [name.removesuffix(".json") for name in names if name.endswith(".json")]
        return [int(stem) for stem in stems if stem.isascii() and stem.isdigit()]

    def clear(self) -> None:
        """Remove all of them."""
        self._files.remove(_FOLDER)


def _name(version: int) -> str:
    return f"{_FOLDER}/{version:08d}.json"
