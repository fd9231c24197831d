"""A weight store behind a URL: who may be one, and what a bad line does."""

import errno
import sys
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem

from infra.roles.errors import ConfigError, ExitCode
from infra.weights.errors import (
    CacheFailed,
    ManifestUnsure,
    StoreFailed,
    StoreUnusable,
    VersionExists,
)
from infra.weights.local.weights import LocalWeights
from infra.weights.store import WeightStore
from tests.factories.stores import StoreSuite, put, whole


class Looks(MemoryFileSystem):
    """Looks whether a file is there, then writes it."""

    protocol = "looks"
    pipe_file = AbstractFileSystem.pipe_file


class Overwrites(MemoryFileSystem):
    """Takes no notice of what it is asked."""

    protocol = "overwrites"

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        super().pipe_file(path, value)


class Full(MemoryFileSystem):
    """Takes nothing."""

    protocol = "full"

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        raise RuntimeError("quota exceeded")


for driver in (Looks, Overwrites, Full):
    fsspec.register_implementation(driver.protocol, driver, clobber=True)


@pytest.fixture
def memory() -> Iterator[str]:
    """URL of an empty place."""
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    yield "memory://store"
    MemoryFileSystem.store.clear()


class TestMemoryStore(StoreSuite):
    """In this process."""

    @pytest.fixture
    def location(self, memory: str) -> str:
        return memory


@pytest.mark.parametrize("protocol", ["looks", "overwrites"])
def test_what_cannot_create_exclusively_is_refused(memory: str, protocol: str) -> None:
    store = WeightStore.at(f"{protocol}://store")
    with pytest.raises(StoreUnusable, match="cannot create a file exclusively") as caught:
        store.check()
    assert caught.value.exit_code == ExitCode.USAGE
    assert store.files.names() == []


def test_what_cannot_be_written_to_is_refused_with_advice(
    memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infra.weights.files.remote._PAUSES_S", ())
    with pytest.raises(StoreUnusable, match=r"(?s)RuntimeError: quota exceeded.*credentials"):
        WeightStore.at("full://store").check()


def test_an_unknown_protocol_is_a_clear_error() -> None:
    with pytest.raises(ConfigError, match=r"(?s)nonsense.*s3://bucket/prefix"):
        WeightStore.at("nonsense://somewhere")


def test_a_missing_driver_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    known = sys.modules["fsspec.registry"]._registry
    monkeypatch.delitem(known, "s3", raising=False)
    with pytest.raises(ConfigError, match=r"(?s)s3fs.*pip install 'warren\[s3\]'"):
        WeightStore.at("s3://bucket/prefix")


def test_secrets_of_an_address_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError) as caught:
        WeightStore.at("nonsense://me:geheim@host/store?token=geheim")
    assert "geheim" not in str(caught.value)
    assert WeightStore.at("memory://me:geheim@host/store?token=geheim").where == (
        "memory://me:***@host/store"
    )


def test_a_lost_answer_is_looked_up(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest was taken, and the line broke: nobody else can have written ours."""
    store, real = WeightStore.at(memory), MemoryFileSystem.pipe_file

    def answer_is_lost(self, path, value, mode="overwrite", **kwargs):
        real(self, path, value, mode=mode)
        raise ConnectionResetError("the answer is lost")

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", answer_is_lost)
    published = put(store, 1)
    assert store.newest() == published
    monkeypatch.setattr(store.manifests, "read", lambda version: None)
    with pytest.raises(VersionExists):
        put(store, 1, whole(2))


def test_a_broken_line_is_tried_again(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.weights.files.remote._PAUSES_S", (0.0, 0.0))
    store, real, calls = WeightStore.at(memory), MemoryFileSystem.pipe_file, []

    def breaks(self, path, value, mode="overwrite", **kwargs):
        calls.append(path)
        if len(calls) < 3:
            raise ConnectionResetError("broken")
        real(self, path, value, mode=mode)

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", breaks)
    assert store.newest() is None
    assert put(store, 1) == store.newest()
    calls.clear()
    monkeypatch.setattr("infra.weights.files.remote._PAUSES_S", ())
    with pytest.raises(StoreFailed, match="broken"):
        put(store, 2)
    assert len(store.files.names()) == 2


def test_a_bucket_that_is_not_there_is_said_at_once(
    memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def no_bucket(self, path, value, mode="overwrite", **kwargs):
        calls.append(path)
        raise FileNotFoundError("The specified bucket does not exist")

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", no_bucket)
    with pytest.raises(StoreUnusable, match="bucket does not exist"):
        WeightStore.at(memory).check()
    assert len(calls) == 1


def test_when_nobody_can_say_the_files_stay(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest that may be there must not name files that are gone."""
    store, real = WeightStore.at(memory), MemoryFileSystem.pipe_file

    def breaks(self, path, value, mode="overwrite", **kwargs):
        real(self, path, value, mode=mode)
        monkeypatch.setattr(MemoryFileSystem, "cat_file", gone)
        raise ConnectionResetError("broken")

    def gone(*args, **kwargs):
        raise ConnectionResetError("still broken")

    with monkeypatch.context() as patched:
        patched.setattr(MemoryFileSystem, "pipe_file", breaks)
        with pytest.raises(ManifestUnsure, match="still broken"):
            put(store, 1)
    monkeypatch.undo()
    (published,) = store.manifests.newest_first()
    assert store.files.names(published.folder) == [file.name for file in published.full]


def test_copies_are_made_once(memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = WeightStore.at(memory)
    published = put(store, 1)
    (file,) = published.full
    first = store.fetch(published, file, tmp_path)

    def never(*args, **kwargs):
        raise AssertionError("copied again")

    monkeypatch.setattr(MemoryFileSystem, "get_file", never)
    assert store.fetch(published, file, tmp_path) == first
    assert first.parent.name == published.folder
    assert [path.name for path in first.parent.iterdir()] == [file.name]


def test_a_full_disk_of_the_reader_is_not_the_stores_fault(
    memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is damaged, so no other way to the version is tried."""
    store, tries = WeightStore.at(memory), []
    published = put(store, 1)
    (tmp_path / "model").mkdir()
    local = LocalWeights(store, model_folder=tmp_path / "model", cache=str(tmp_path / "cache"))

    def full(self, path, target, **kwargs):
        tries.append(path)
        Path(target).write_bytes(b"some")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(MemoryFileSystem, "get_file", full)
        with pytest.raises(CacheFailed, match="No space left") as caught:
            local.prepare(published)
    assert "free some space there" in caught.value.hint
    assert len(tries) == 1
    assert local.prepare(published).fingerprint == published.fingerprint
    local.close()
    assert list((tmp_path / "cache").iterdir()) == []
