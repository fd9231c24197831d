"""What the storm does to bytes."""

import random
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from infra.storm.faults.messages import flipped, truncated
from infra.storm.faults.weights import flip_bit, truncate_file, version_of

BODIES = st.binary(min_size=1, max_size=200)
SEEDS = st.integers(0, 2**32)


@given(BODIES, SEEDS)
def test_a_flipped_body_differs_in_one_bit(body: bytes, seed: int) -> None:
    found = flipped(body, random.Random(seed))
    assert len(found) == len(body)
    assert sum((a ^ b).bit_count() for a, b in zip(body, found, strict=True)) == 1


@given(BODIES, SEEDS)
def test_a_truncated_body_is_a_shorter_beginning(body: bytes, seed: int) -> None:
    found = truncated(body, random.Random(seed))
    assert len(found) < len(body)
    assert body.startswith(found)


@given(SEEDS)
def test_the_same_seed_does_the_same(seed: int) -> None:
    body = bytes(range(200))
    for damage in (flipped, truncated):
        assert damage(body, random.Random(seed)) == damage(body, random.Random(seed)) != body


def test_files_are_damaged_in_place(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    whole = bytes(range(256))
    path.write_bytes(whole)
    inode = path.stat().st_ino
    flip_bit(path, random.Random(1))
    found = path.read_bytes()
    assert sum((a ^ b).bit_count() for a, b in zip(whole, found, strict=True)) == 1
    truncate_file(path, random.Random(1))
    assert found.startswith(path.read_bytes())
    assert path.stat().st_size < 256
    assert path.stat().st_ino == inode


def test_version_folders_are_told_from_others() -> None:
    names = ("v00000012.i3.5f0c9a1e", ".partial-v00000012.i3.5f0c9a1e", "manifests", "vx", "12")
    assert [version_of(name) for name in names] == [12, -1, -1, -1, -1]
