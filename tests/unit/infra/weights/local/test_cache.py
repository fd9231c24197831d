"""Whose folder it is, and what becomes of it when its worker is killed."""

import fcntl
import signal
import subprocess
import sys

import pytest

from infra.weights.errors import CacheFailed, CacheUnusable
from infra.weights.local.cache import Cache, check_place, remove_leavings

OWNER = """
import sys, time
from pathlib import Path
from infra.weights.local.cache import Cache
cache = Cache(Path(sys.argv[1]))
(cache.folder / "weights").write_bytes(b"1234")
print(cache.folder, flush=True)
time.sleep(600)
"""


@pytest.fixture
def owner(tmp_path):
    """Another worker, and its folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    folder = process.stdout.readline().strip()
    yield process, tmp_path / folder.rpartition("/")[2]
    process.kill()
    process.wait(60)
    process.stdout.close()


def test_what_a_killed_worker_left_is_removed_and_what_a_living_one_has_is_not(tmp_path, owner):
    process, folder = owner
    first = Cache(tmp_path)
    assert (folder / "weights").exists()
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    second = Cache(tmp_path)
    assert not folder.exists()
    assert not folder.with_suffix(".lock").exists()
    assert first.folder.is_dir(), "of this process, and locked"
    first.close()
    second.close()
    assert list(tmp_path.iterdir()) == []


def test_a_claim_that_is_swept_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
    lock = fcntl.flock
    swept = []

    def slow(descriptor, how):
        if not swept:
            swept.append(True)
            remove_leavings(tmp_path)
        lock(descriptor, how)

    monkeypatch.setattr("infra.weights.local.cache.fcntl.flock", slow)
    cache = Cache(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        cache.folder.name,
        f"{cache.folder.name}.lock",
    ]
    cache.close()


def test_nothing_else_in_a_shared_place_is_touched(tmp_path):
    (tmp_path / "mine.lock").write_text("")
    (tmp_path / "warren-weights-of-somebody").mkdir()
    Cache(tmp_path).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "mine.lock",
        "warren-weights-of-somebody",
    ]


def test_only_the_owner_may_look_into_it(tmp_path):
    cache = Cache(tmp_path)
    assert cache.folder.stat().st_mode & 0o777 == 0o700
    cache.close()


def test_a_place_that_cannot_be_used(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheFailed, match="cannot write weights"):
        Cache(tmp_path / "file")
    with pytest.raises(CacheUnusable, match=r"file/deep") as caught:
        check_place(str(tmp_path / "file" / "deep"))
    assert "[weights] cache" in caught.value.hint
    check_place("")
    check_place(str(tmp_path / "new"))
    assert list((tmp_path / "new").iterdir()) == []
