"""A yard for each test."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from consumers.rollout import worker
from tests.broker_fixtures import Connect
from tests.integration.rollout.yard import Yard


@pytest.fixture(autouse=True)
def _no_watchdog(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers in the tests' own process must not end it when a busy machine lets it stand still."""
    monkeypatch.setattr(worker, "Watchdog", lambda _limit_s: contextlib.nullcontext())


@pytest.fixture
async def yard(tmp_path: Path, connect: Connect) -> AsyncIterator[Yard]:
    """Version 0 is published; no worker runs."""
    made = Yard(tmp_path, await connect(app_id="test/yard"))
    await made.publish_weights(0)
    yield made
    await made.close()
