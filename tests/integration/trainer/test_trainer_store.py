"""The trainer with its weights on S3."""

from pathlib import Path

import pytest

from infra.roles.command.check import check_store
from infra.roles.errors import ExitCode
from infra.roles.newest import newest_manifest
from infra.runs.folder import RunFolder
from infra.runs.metrics import read_metrics
from infra.weights.local.weights import LocalWeights
from infra.weights.store import WeightStore
from tests.factories.world import World, working
from tests.integration.trainer.books import check_books

pytestmark = pytest.mark.broker


@pytest.mark.timeout(240)
async def test_a_run_publishes_to_s3_is_refused_there_and_purged(
    recipe, trainer, connect, s3: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = {"store": s3, "codec": "step", "keyframe_every": 3}
    small = {"lr": 1e-6}  # larger steps change so much that versions go out whole
    config = recipe(run={"steps": 5}, weights=weights, trainer=small)
    assert check_store(config) == f"{s3} can be written"
    async with working(World(await connect(app_id="world/0"))):
        assert await trainer(config) == 0
        check_books(config, steps=5)
        store = WeightStore.at(s3)
        newest = store.newest()
        assert newest is not None and newest.version == 5
        assert await newest_manifest(RunFolder.of(config), config) == newest
        held = LocalWeights(
            store, model_folder=Path(config.model.path), cache=str(tmp_path / "cache")
        )
        assert held.prepare(newest).fingerprint == newest.fingerprint
        held.close()
        manifests = [store.manifest(version) for version in range(6)]
        assert [one.version for one in manifests if one and one.full] == [0, 3]
        lines = list(read_metrics(RunFolder.of(config).metrics, "step"))
        assert [line["weights/keyframe"] for line in lines] == [0, 0, 1, 0, 0]
        assert all(0 < line["weights/delta_share"] < 0.6 for line in lines)

    elsewhere = recipe(run={"steps": 1, "dir": str(tmp_path / "others")}, weights={"store": s3})
    assert await trainer(elsewhere) == ExitCode.USAGE
    async with working(World(await connect(app_id="world/1"))):  # the former knows version 5
        assert await trainer(elsewhere, purge=True) == 0
    newest = store.newest()
    assert newest is not None and newest.version == 1
    assert store.manifest(5) is None
    said = capsys.readouterr().out
    assert f"the weight store {s3} holds version 5" in said
    assert "geheim" not in said
    assert not Path("s3:").exists()
