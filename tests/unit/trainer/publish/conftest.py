"""A trainer's publisher alone, for one recipe."""

from pathlib import Path

import pytest

from schemas.config import RunConfig
from tests.factories.publishing import Room, Told


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def room(config: RunConfig, tmp_path: Path, told: Told) -> Room:
    return Room(tmp_path, config, told)
