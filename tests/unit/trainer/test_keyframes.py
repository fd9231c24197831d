"""When a version is published whole."""

from consumers.trainer.keyframes import Keyframes
from schemas.control import WeightFile, WeightsPublished

FILE = (WeightFile(name="f", size_bytes=1, sha256="0" * 64),)


def keyframes_of(keyframes: Keyframes, versions: range) -> list[int]:
    """Publishes them; the ones that were due."""
    due = []
    for version in versions:
        whole = keyframes.due(version)
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
    assert keyframes_of(Keyframes(4, lambda: -1), range(10)) == [0, 4, 8]
    assert keyframes_of(Keyframes(4, lambda: -1), range(7, 12)) == [7, 11]
    assert keyframes_of(Keyframes(1, lambda: -1), range(3)) == [0, 1, 2]


def test_who_cannot_go_on_is_helped_once() -> None:
    refused = -1
    keyframes = Keyframes(100, lambda: refused)
    assert keyframes_of(keyframes, range(4)) == [0]
    refused = 2
    assert keyframes_of(keyframes, range(4, 9)) == [4]
    refused = 6
    assert keyframes_of(keyframes, range(9, 12)) == [9]


def test_who_refuses_whatever_comes_is_helped_ever_less_often() -> None:
    newest = 0
    keyframes = Keyframes(10, lambda: newest - 1)
    due = []
    for newest in range(60):
        due += keyframes_of(keyframes, range(newest, newest + 1))
    assert due == [0, 1, 3, 7, 15, 25, 35, 45, 55]
    newest = 20
    assert keyframes_of(keyframes, range(60, 61)) == []
    newest = 62
    assert keyframes_of(keyframes, range(62, 63)) == [62]
