"""Fixtures shared by all tests. No hypothesis example fails because the machine is busy."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.broker_fixtures", "tests.packages", "tests.processes"]

settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers of random weights."""
    from tests.factories.models import build

    folder = tmp_path_factory.mktemp("model")
    build(folder, tied=False, seed=0)
    return folder
