"""What every weight store must do, wherever it lies; each place has a test module of its own."""

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fsspec.core import url_to_fs
from safetensors.torch import load_file

from infra.weights.errors import StoreFailed, VersionExists, WeightsCorrupt
from infra.weights.fingerprint import fingerprint
from infra.weights.publication import Publication, casted, publication
from infra.weights.store import WeightStore
from schemas.control import WeightsPublished


def tensors_of(seed: int) -> dict[str, torch.Tensor]:
    """Two small ones."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "a.weight": torch.randn(8, 4, generator=generator),
        "b.weight": torch.randn(300, generator=generator),
    }


def whole(seed: int) -> Publication:
    """All of them, ready to be written."""
    return publication(casted(tensors_of(seed), "float32"))


def put(store: WeightStore, version: int, new: Publication | None = None) -> WeightsPublished:
    """A version, by default of its own number's tensors."""
    return store.put(new or whole(version), version=version, run_id="r", incarnation=1, step=0)


def loaded(store: WeightStore, published: WeightsPublished, cache: Path) -> str:
    """Fingerprint of what is fetched of a whole version."""
    tensors: dict[str, torch.Tensor] = {}
    for file in published.full:
        tensors |= load_file(store.fetch(published, file, cache))
    return fingerprint(tensors)


class StoreSuite:
    """Subclasses are test classes; `location` is a fixture: a folder or URL, new for each test."""

    @pytest.fixture
    def store(self, location: str) -> WeightStore:
        """Nothing is in it."""
        return WeightStore.at(location)

    def test_it_can_be_written_to_and_stays_clean(self, store: WeightStore) -> None:
        store.check()
        assert store.files.names() == []
        assert store.newest() is None

    def test_what_is_published_is_what_is_fetched(
        self, store: WeightStore, location: str, tmp_path: Path
    ) -> None:
        published = put(store, 3)
        assert store.manifest(3) == published
        assert store.manifest(2) is None
        other = WeightStore.at(location)
        assert other.newest() == published
        assert loaded(other, published, tmp_path / "cache") == published.fingerprint
        assert published.fingerprint == fingerprint(tensors_of(3))

    def test_the_newest_below_a_version(self, store: WeightStore) -> None:
        published = {version: put(store, version) for version in (1, 2, 5)}
        assert store.newest(below=6) == published[5]
        assert store.newest(below=5) == published[2]
        assert store.newest(below=1) is None

    def test_a_version_is_published_once(self, store: WeightStore) -> None:
        first = put(store, 1)
        with pytest.raises(VersionExists, match="version 1"):
            put(store, 1, whole(9))
        assert store.newest() == first
        assert store.files.names() == ["manifests", first.folder]

    def test_of_writers_that_race_for_a_version_one_wins(
        self, location: str, tmp_path: Path
    ) -> None:
        barrier = threading.Barrier(4)
        outcomes: list[WeightsPublished | VersionExists] = []

        def race(seed: int) -> None:
            rival = WeightStore.at(location)
            write = rival.files.write

            def write_and_wait(*args):
                files = write(*args)
                barrier.wait(60)
                return files

            rival.files.write = write_and_wait  # type: ignore[method-assign]
            try:
                outcomes.append(put(rival, 7, whole(seed)))
            except VersionExists as error:
                outcomes.append(error)

        threads = [threading.Thread(target=race, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        (winner,) = (one for one in outcomes if isinstance(one, WeightsPublished))
        assert len(outcomes) == 4
        store = WeightStore.at(location)
        assert store.newest() == winner
        assert store.files.names() == ["manifests", winner.folder]
        assert loaded(store, winner, tmp_path / "cache") == winner.fingerprint

    def test_a_reader_that_races_with_pruning_reads_right_or_is_told(
        self, location: str, tmp_path: Path
    ) -> None:
        writer, reader = (WeightStore.at(location) for _ in range(2))
        put(writer, 0)
        done, outcomes = threading.Event(), []

        def read() -> None:
            for number in itertools.count():
                if done.is_set():
                    return
                published = reader.newest()
                assert published is not None
                try:
                    found = loaded(reader, published, tmp_path / f"{number}")
                    outcomes.append(found == published.fingerprint)
                except (WeightsCorrupt, FileNotFoundError):  # pruned before, or after the check
                    outcomes.append(True)

        thread = threading.Thread(target=read)
        thread.start()
        for version in range(1, 13):
            put(writer, version)
            writer.prune(1)
        done.set()
        thread.join(60)
        assert outcomes and all(outcomes)
        newest = writer.newest()
        assert newest is not None
        assert loaded(reader, newest, tmp_path / "last") == newest.fingerprint
        assert writer.files.names() == ["manifests", newest.folder]

    @pytest.mark.parametrize("error", [OSError("the line is cut"), KeyboardInterrupt()])
    def test_an_interrupted_publication_leaves_nothing(
        self, store: WeightStore, error: BaseException
    ) -> None:
        first, new = put(store, 1), whole(2)

        def torn() -> Iterator[bytes]:
            yield b"half of it"
            raise error

        torn_new = Publication(
            tensors=new.tensors,
            entries=new.entries,
            full={**new.full, "model-2.safetensors": torn()},
            delta={},
            base_version=None,
            metrics={},
        )
        expected = StoreFailed if isinstance(error, OSError) else KeyboardInterrupt
        with pytest.raises(expected):
            put(store, 2, torn_new)
        assert store.newest() == first
        assert store.files.names() == ["manifests", first.folder]
        put(store, 2)

    def test_what_a_killed_writer_left_is_never_seen_and_goes_with_the_next(
        self, store: WeightStore
    ) -> None:
        store.files.write("v00000000.i1.aaaaaaaa", whole(0).full)
        assert store.newest() is None
        published = put(store, 0, whole(1))
        store.prune(2)
        assert store.newest() == published
        assert store.files.names() == ["manifests", published.folder]

    def test_damage_is_found_and_not_remembered(
        self, store: WeightStore, location: str, tmp_path: Path
    ) -> None:
        published = put(store, 1)
        (file,) = published.full
        fs, root = url_to_fs(location)
        path = f"{root}/{published.folder}/{file.name}"
        right = fs.cat_file(path)
        flipped = right[:-1] + bytes((right[-1] ^ 1,))
        for damaged, complaint in ((flipped, "sha256"), (right[:-1], "were written")):
            fs.pipe_file(path, damaged)
            with pytest.raises(WeightsCorrupt, match=complaint):
                store.fetch(published, file, tmp_path / "cache")
        fs.pipe_file(path, right)
        assert store.fetch(published, file, tmp_path / "cache").read_bytes() == right
        store.files.remove(published.folder)
        with pytest.raises(WeightsCorrupt, match="cannot be read"):
            store.fetch(published, file, tmp_path / "other")

    def test_pruning_keeps_the_newest_and_every_manifest(self, store: WeightStore) -> None:
        manifests = [put(store, version) for version in (1, 2, 3, 5)]
        assert store.prune(2) == [1, 2]
        kept = [manifest.folder for manifest in manifests[2:]]
        assert store.files.names() == ["manifests", *kept]
        assert store.manifest(1) == manifests[0]
        assert store.prune(0) == [3]
        assert store.newest() == manifests[3]

    def test_clearing_takes_what_is_ours_and_leaves_what_else_lies_there(
        self, store: WeightStore, location: str
    ) -> None:
        store.clear()
        put(store, 1)
        fs, root = url_to_fs(location)
        fs.makedirs(f"{root}/thesis", exist_ok=True)
        fs.pipe_file(f"{root}/thesis/one.txt", b"mine")
        fs.pipe_file(f"{root}/notes.txt", b"mine")
        store.clear()
        assert store.files.names() == ["notes.txt", "thesis"]
        assert store.newest() is None
        put(store, 1)
