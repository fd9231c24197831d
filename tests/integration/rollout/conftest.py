"""A yard for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.broker_fixtures import Connect
from tests.integration.rollout.yard import Yard


@pytest.fixture
async def yard(tmp_path: Path, connect: Connect) -> AsyncIterator[Yard]:
    """Version 0 is published; no worker runs."""
    made = Yard(tmp_path, await connect(app_id="test/yard"))
    await made.publish_weights(0)
    yield made
    await made.close()
