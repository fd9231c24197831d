"""The newest version on this machine, verified, for engines to load from.

published -> plan -> fetch -> shadow: deltas applied beside what is held -> every digest checked
                 |                                                             |
                 +-- next plan: a keyframe, loudly <-- anything in doubt ------+-> PreparedWeights
                                                                               |
          the engine serves it: `taken`: the shadow is held, the old goes <----+
          it refuses:           `discard`: the shadow goes, the old is as it was
"""

import logging
import shutil
import threading
import time
from itertools import islice
from pathlib import Path
from typing import Protocol

from infra.weights.delta.decode import parse_delta
from infra.weights.errors import CacheFailed, WeightsCorrupt
from infra.weights.local.cache import Cache, failed, place_for
from infra.weights.local.lowrank import AdapterChange
from infra.weights.local.mapped import mapped
from infra.weights.local.plan import Plan, plans
from infra.weights.local.shadow import Change, Shadow
from infra.weights.local.version import Version
from infra.weights.prepared import PreparedWeights
from schemas.control import WeightFile, WeightsPublished

logger = logging.getLogger(__name__)

_MAX_PLANS = 4
_CLOSE_S = 10.0


class Store(Protocol):
    """The part of a weight store that is used here."""

    def manifest(self, version: int) -> WeightsPublished | None: ...

    def fetch(self, published: WeightsPublished, file: WeightFile, cache: Path) -> Path: ...


class LocalWeights:
    """Holds one version, and makes the next beside it. Everything blocks: call it in a thread.

    Args:
        store: Of the run.
        model_folder: Config and tokenizer.
        cache: `[weights] cache`; empty: shared memory if there is room, else the temporary folder.
    """

    def __init__(self, store: Store, *, model_folder: Path, cache: str) -> None:
        self._store = store
        self._model_folder = model_folder
        self._place = cache
        self._cache: Cache | None = None
        self._held: Version | None = None
        self._shadow: Version | None = None
        self._count = 0
        self._busy = threading.Lock()
        self._closing = False

    def prepare(self, published: WeightsPublished) -> PreparedWeights:
        """Make a version, verified tensor by tensor; what is held stays as it is.

        What was prepared before and not taken is dropped. Asked again for the version that was
        prepared last, it trusts nothing that is held, and begins with a keyframe.

        Raises:
            WeightsCorrupt: There is no undamaged way to it.
            CacheFailed: The cache cannot be written.
        """
        with self._busy:
            again = self._shadow is not None and self._shadow.number == published.version
            self._drop_shadow()
            self._check()
            if again:
                logger.warning("version %d once more: from a keyframe", published.version)
            self._shadow = self._made(published, None if again else self._held)
            return self._prepared(self._shadow)

    def taken(self, version: int) -> None:
        """The engine serves the version that was prepared last: hold it instead of the former.

        Raises:
            ValueError: Another one was prepared last.
        """
        with self._busy:
            if self._shadow is None or self._shadow.number != version:
                raise ValueError(f"version {version} is not the one that was prepared last")
            old, self._held, self._shadow = self._held, self._shadow, None
            if old is not None:
                shutil.rmtree(old.folder, ignore_errors=True)

    def discard(self) -> None:
        """Drop what was prepared last: the engine serves the former version."""
        with self._busy:
            self._drop_shadow()

    def close(self) -> None:
        """Remove the cache; ends a `prepare` that runs in another thread."""
        self._closing = True
        idle = self._busy.acquire(timeout=_CLOSE_S)
        if self._cache is not None:
            self._cache.close()
            self._cache = None
        if idle:
            self._busy.release()

    # -- inside

    def _check(self) -> None:
        if self._closing:
            raise CacheFailed("the worker leaves: no more weights are prepared")

    def _made(self, published: WeightsPublished, held: Version | None) -> Version:
        reasons: list[str] = []
        broken: set[int] = set()
        for plan in islice(plans(published, held, self._store.manifest), _MAX_PLANS):
            if broken.intersection(one.version for one in plan.deltas):
                continue
            from_store = isinstance(plan.start, WeightsPublished)
            if reasons or (from_store and held is not None and published.delta):
                logger.warning("version %d: starting over from %s", published.version, plan)
            try:
                began = time.monotonic()
                version = self._built(published, plan, broken)
                logger.info(
                    "version %d is made from %s · %.1f MB fetched, %.2f s",
                    version.number,
                    plan,
                    plan.num_bytes / 1e6,
                    time.monotonic() - began,
                )
                return version
            except WeightsCorrupt as error:
                reasons.append(f"from {plan}: {error}")
                logger.warning("version %d cannot be made %s", published.version, reasons[-1])
        raise WeightsCorrupt(
            f"version {published.version} cannot be made: "
            + ("; ".join(reasons) or "no keyframe leads to it"),
            hint="the trainer publishes it in full when it hears of this",
        )

    def _built(self, published: WeightsPublished, plan: Plan, broken: set[int]) -> Version:
        cache = self._claimed(plan.num_bytes)
        self._count += 1
        folder = cache.folder / f"v{published.version:08d}.{self._count}"
        fetched = cache.folder / "fetched"
        whole = False
        try:
            folder.mkdir()
            fetched.mkdir()
            # all of them first: they are small, and one that is missing spares copying a keyframe
            parts = [self._fetched(one, one.delta, fetched, broken) for one in plan.deltas]
            shadow = self._begun(plan, folder, fetched)
            entries = None
            for one, paths in zip(plan.deltas, parts, strict=True):
                delta = self._change(one, paths, shadow, broken)
                _release(paths, fetched)
                shadow.apply(delta)
                entries = delta.entries
            version = shadow.finished(
                number=published.version,
                entries=entries,
                fingerprint=published.fingerprint,
                model=self._model_folder,
            )
            whole = True
            return version
        except OSError as error:
            raise failed(cache.folder, error) from error
        finally:
            shutil.rmtree(fetched, ignore_errors=True)
            if not whole:
                shutil.rmtree(folder, ignore_errors=True)

    def _change(
        self, published: WeightsPublished, paths: list[Path], shadow: Shadow, broken: set[int]
    ) -> Change:
        try:
            if published.adapter:
                return AdapterChange(paths[0], self._model_folder, shadow.kinds)
            return parse_delta(b"".join(path.read_bytes() for path in paths))
        except WeightsCorrupt:
            broken.add(published.version)
            raise
        except OSError as error:
            broken.add(published.version)
            raise WeightsCorrupt(f"{paths[0]} cannot be read: {error.strerror or error}") from error

    def _begun(self, plan: Plan, folder: Path, fetched: Path) -> Shadow:
        if isinstance(plan.start, Version):
            return Shadow.from_held(folder, plan.start, self._check)
        paths = self._fetched(plan.start, plan.start.full, fetched)
        shadow = Shadow.from_files(folder, paths, self._check)
        _release(paths, fetched)
        return shadow

    def _fetched(
        self,
        published: WeightsPublished,
        files: tuple[WeightFile, ...],
        fetched: Path,
        broken: set[int] | None = None,
    ) -> list[Path]:
        paths = []
        for file in files:
            self._check()
            try:
                paths.append(self._store.fetch(published, file, fetched))
            except WeightsCorrupt:
                if broken is not None:
                    broken.add(published.version)
                raise
        return paths

    def _claimed(self, num_bytes: int) -> Cache:
        if self._cache is None:
            self._cache = Cache(place_for(num_bytes, self._place))
            logger.info("weights are kept in %s", self._cache.folder)
        return self._cache

    def _drop_shadow(self) -> None:
        shadow, self._shadow = self._shadow, None
        if shadow is not None:
            shutil.rmtree(shadow.folder, ignore_errors=True)

    def _prepared(self, version: Version) -> PreparedWeights:
        held = self._held
        different = None if held is None else version.entries.items() ^ held.entries.items()
        return PreparedWeights(
            version=version.number,
            fingerprint=version.fingerprint,
            model_folder=version.folder,
            files=version.files,
            tensors=mapped(version),
            base_fingerprint="" if held is None else held.fingerprint,
            changed=None if different is None else frozenset(name for name, _ in different),
        )


def _release(paths: list[Path], fetched: Path) -> None:
    """Remove copies; files of the store itself stay."""
    for path in paths:
        if path.is_relative_to(fetched):
            path.unlink()
