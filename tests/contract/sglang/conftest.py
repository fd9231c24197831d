"""Tiny models for the fake server."""

from pathlib import Path
from typing import Any

import pytest

from tests.factories import models

Built = tuple[Path, Any]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Built]:
    """Two folders of the same layout with other weights, and their models."""
    folders = [tmp_path_factory.mktemp(f"tiny{seed}") for seed in (0, 1)]
    return [
        (folder, models.build(folder, tied=False, seed=seed)) for seed, folder in enumerate(folders)
    ]


@pytest.fixture
def tiny_folder(built: list[Built]) -> Path:
    return built[0][0]


@pytest.fixture
def tiny_model(built: list[Built]) -> Any:
    return built[0][1]


@pytest.fixture
def other_folder(built: list[Built]) -> Path:
    return built[1][0]


@pytest.fixture
def other_model(built: list[Built]) -> Any:
    return built[1][1]
