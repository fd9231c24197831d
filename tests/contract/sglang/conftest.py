"""A tiny model for the fake server, and the engine that speaks to it."""

from pathlib import Path

import pytest

from tests.factories import models


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    models.build(folder, tied=False, seed=0)
    return folder


@pytest.fixture(scope="session")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same layout, other weights."""
    folder = tmp_path_factory.mktemp("other")
    models.build(folder, tied=False, seed=1)
    return folder
