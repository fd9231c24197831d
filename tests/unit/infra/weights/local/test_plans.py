"""Ways to a version: each once."""

from pathlib import Path

from infra.weights.local.plan import plans
from infra.weights.local.version import Version
from schemas.control import WeightFile, WeightsPublished

FILE = WeightFile(name="file", size_bytes=1, sha256="0" * 64)


def published(version: int, **more: object) -> WeightsPublished:
    return WeightsPublished(
        run_id="run",
        version=version,
        incarnation=1,
        step=version,
        folder=f"v{version}",
        fingerprint=f"fingerprint {version}",
        **more,
    )


def held(number: int) -> Version:
    return Version(number, f"fingerprint {number}", Path("held"), {}, {})


def test_an_adapter_is_tried_once_on_what_is_held_also_if_that_is_its_keyframe() -> None:
    keyframe = published(0, full=(FILE,))
    adapter = published(2, delta=(FILE,), base_version=0, adapter=True)
    for number in (0, 1):
        found = [str(plan) for plan in plans(adapter, held(number), {0: keyframe}.get)]
        assert found == [
            f"version {number}, which is held, and 1 delta",
            "keyframe 0, and 1 delta",
        ]
    assert [str(plan) for plan in plans(adapter, held(2), {0: keyframe}.get)] == [
        "version 2, which is held",
        "keyframe 0, and 1 delta",
    ]
