"""Real rollout workers meet a version that is damaged or gone: the run goes on by itself."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from infra.runs.folder import RunFolder
from infra.runs.metrics import read_metrics
from infra.weights.files.local import LocalFiles
from schemas.config import RunConfig
from schemas.journal import Batch, Published
from tests.integration.trainer.books import records_of
from tests.integration.trainer.conftest import ROOT
from tests.processes import popen

pytestmark = pytest.mark.broker
ROLES = {
    "producer": "producers.prompts",
    "rollout": "consumers.rollout.worker",
    "reward": "consumers.reward.worker",
}

Others = Callable[[RunConfig], Path]


@pytest.fixture
def others(broker_url: str, tmp_path: Path) -> Iterator[Others]:
    """Starts every role but the trainer, one process each; returns the rollout worker's log."""

    def start(config: RunConfig) -> Path:
        recipe_file = tmp_path / "others.json"
        recipe_file.write_text(config.model_dump_json())
        for role, module in ROLES.items():
            code = (
                "import sys; from pathlib import Path; from schemas.config import RunConfig; "
                f"from {module} import run; "
                "sys.exit(run(RunConfig.model_validate_json(Path(sys.argv[1]).read_text())))"
            )
            with (tmp_path / f"{role}.log").open("w") as log:
                popen(
                    [sys.executable, "-c", code, str(recipe_file)],
                    cwd=ROOT,
                    env={**os.environ, "WARREN_BROKER_URL": broker_url, "OMP_NUM_THREADS": "1"},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
        return tmp_path / "rollout.log"

    yield start


def damage(monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    """A bit of each of its files is flipped before anybody can read them."""
    write = LocalFiles.write

    def harmed(self: LocalFiles, folder: str, contents: Mapping[str, Any]) -> Any:
        files = write(self, folder, contents)
        if folder.startswith(f"v{version:08d}."):
            for file in files:
                path = Path(self.where) / folder / file.name
                data = bytearray(path.read_bytes())
                data[len(data) // 2] ^= 1
                path.write_bytes(data)
        return files

    monkeypatch.setattr(LocalFiles, "write", harmed)


@pytest.mark.timeout(240)
async def test_on_policy_a_damaged_version_goes_out_again(
    recipe, trainer, others, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing may be sampled under the version before it, so no other step would come."""
    damage(monkeypatch, 1)
    config = recipe(
        run={"steps": 3},
        rollout={"slots": 8, "max_prompt_tokens": 32, "max_response_tokens": 16},
        reward={"functions": [{"use": "tests.e2e.plugs:alternating"}]},
        algorithm={"max_staleness": 0.0},
    )
    log = others(config)
    assert await asyncio.wait_for(trainer(config), 200) == 0, log.read_text()
    records = records_of(config)
    published = [record for record in records if isinstance(record, Published)]
    assert [(p.version, p.step) for p in published] == [(0, 0), (1, 1), (2, 1), (3, 2), (4, 3)]
    assert published[1].fingerprint == published[2].fingerprint != published[3].fingerprint
    batches = [record for record in records if isinstance(record, Batch)]
    assert [(batch.step, batch.version) for batch in batches] == [(1, 0), (2, 2), (3, 3)]
    said = log.read_text()
    assert "version 1 cannot be read; version 0 serves on" in said
    assert "version 0 -> 2" in said
    (end,) = read_metrics(RunFolder.of(config).metrics, "end")
    assert end["ledger/balanced"]
