"""One written run for all; who changes it writes their own."""

from pathlib import Path

import pytest

from infra.observe.page.runs import Run
from tests.factories.run_folders import small_run


@pytest.fixture(scope="session")
def written_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = small_run(tmp_path_factory.mktemp("runs"))
    run.close()
    return run.root


@pytest.fixture
def run(written_root: Path) -> Run:
    opened = Run(written_root)
    opened.index.update()
    opened.index.fill(opened.index.rows)
    return opened
