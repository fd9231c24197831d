"""When a version is published whole."""

from consumers.trainer.keyframes import Keyframes
from schemas.control import WeightFile, WeightsPublished

FILE = (WeightFile(name="f", size_bytes=1, sha256="0" * 64),)


def keyframes_of(keyframes: Keyframes, versions: range, refused: int = -1) -> list[int]:
    """Publishes them; the ones that were due."""
    due = []
    for version in versions:
        whole = keyframes.due(version, refused)
        keyframes.published(
            WeightsPublished(
                run_id="r",
                version=version,
                incarnation=1,
                step=version,
                folder="v",
                full=FILE if whole else (),
                delta=() if whole else FILE,
                base_version=None if whole else version - 1,
                fingerprint="f",
            )
        )
        due += [version] * whole
    return due


def test_the_first_and_then_every_so_many() -> None:
    assert keyframes_of(Keyframes(4), range(10)) == [0, 4, 8]
    assert keyframes_of(Keyframes(4), range(7, 12)) == [7, 11]
    assert keyframes_of(Keyframes(1), range(3)) == [0, 1, 2]


def test_who_cannot_go_on_is_helped_once() -> None:
    keyframes = Keyframes(100)
    assert keyframes_of(keyframes, range(4)) == [0]
    assert keyframes_of(keyframes, range(4, 9), refused=2) == [4]
    assert keyframes_of(keyframes, range(9, 12), refused=6) == [9]


def test_who_refuses_whatever_comes_is_helped_ever_less_often() -> None:
    keyframes = Keyframes(10)
    due = []
    for version in range(60):
        due += keyframes_of(keyframes, range(version, version + 1), refused=version - 1)
    assert due == [0, 1, 3, 7, 15, 25, 35, 45, 55]
    assert keyframes_of(keyframes, range(60, 61), refused=20) == []
    assert keyframes_of(keyframes, range(61, 62), refused=60) == [61]
