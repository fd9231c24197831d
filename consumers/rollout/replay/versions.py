"""Which policy versions of a run can still be served, and their weights.

weight store       the newest whole versions and all since
checkpoints        step_<n>/hf: the version that was published after step n
starting model     version 0
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from consumers.rollout.engines.build import held_weights
from infra.roles.errors import ConfigError
from infra.runs.folder import RunFolder
from infra.runs.journal_reader import JournalReader
from infra.weights.errors import StoreFailed, WeightsCorrupt
from infra.weights.prepared import PreparedWeights
from infra.weights.store import WeightStore
from schemas.config import RunConfig
from schemas.journal import Published

if TYPE_CHECKING:
    from infra.weights.described import DescribedWeights
    from infra.weights.local.weights import LocalWeights


class KeptVersions:
    """Of one run; everything blocks.

    Args:
        config: Its recipe.
        folder: Where it lies.
        starting: The starting model's folder.

    Raises:
        StoreFailed: The weight store cannot be read, now.
    """

    def __init__(self, config: RunConfig, folder: RunFolder, *, starting: Path) -> None:
        self._config = config
        self._store = WeightStore.at(folder.weights(config))
        records = (entry.record for entry in JournalReader(folder.journal).records())
        self._published = {r.version: r for r in records if isinstance(r, Published)}
        self._folders = dict(self._found_folders(folder, starting))
        names = {name for name in self._store.files.names() if name.startswith("v")}
        manifests = self._store.manifests.newest_first()
        self._stored = {one.version: one for one in manifests if one.folder in names}

    @property
    def numbers(self) -> list[int]:
        """In order."""
        return sorted({*self._stored, *self._folders})

    def check(self, version: int) -> None:
        """It can be served.

        Raises:
            ConfigError: It cannot; says which can.
        """
        if version not in self.numbers:
            newest = max({*self._stored, *self._published}, default=-1)
            raise ConfigError(
                f"version {version} was never published: the newest is version {newest}"
                if not 0 <= version <= newest
                else f"the weights of version {version} are not kept any more",
                hint=f"versions that are: {ranges(self.numbers) or 'none'}",
            )

    @contextmanager
    def prepared(self, version: int) -> Iterator[PreparedWeights]:
        """Its weights, verified; the files are gone behind it.

        Raises:
            ConfigError: It is not kept.
            WeightsCorrupt: What is kept is damaged.
        """
        self.check(version)
        held = held_weights(self._config, self._store)
        try:
            yield self._from_store(held, version) or self._from_folder(version)
        finally:
            held.close()

    def _from_store(
        self, held: "LocalWeights | DescribedWeights", version: int
    ) -> PreparedWeights | None:
        manifest = self._stored.get(version)
        if manifest is None:
            return None
        try:
            return held.prepare(manifest)
        except (WeightsCorrupt, StoreFailed):
            if version not in self._folders:
                raise
            return None

    def _from_folder(self, version: int) -> PreparedWeights:
        from infra.weights.hf_folder import prepare_folder

        return prepare_folder(
            self._folders[version],
            dtype=self._config.model.dtype,
            version=version,
            promised=self._published[version].fingerprint,
        )

    def _found_folders(self, folder: RunFolder, starting: Path) -> Iterator[tuple[int, Path]]:
        for version, published in self._published.items():
            hf = folder.checkpoints / f"step_{published.step}" / "hf"
            path = hf if published.step else starting
            if path.is_dir():
                yield version, path


def ranges(numbers: list[int]) -> str:
    """`0, 100, 110 to 120` of sorted numbers."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join(" to ".join(map(str, part)) for part in parts)
