"""Each of ten faults on a real run is named by the monitor, in words that say what to do."""

import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.amqp.local_broker import LocalBroker
from infra.observe.monitor.command import Watcher
from infra.roles.broker_url import BROKER_VARIABLE
from infra.roles.command.target import target
from tests.e2e.faults import FAULTS, show, stage_all
from tests.e2e.stage import Stage

pytestmark = [pytest.mark.broker, pytest.mark.timeout(1200)]


class Watched(Stage):
    """Looked at by one monitor that stays, instead of a new one for each look."""

    def __init__(self, folder: Path, node: LocalBroker) -> None:
        super().__init__(folder, node)
        self.watcher = Watcher(target(Namespace(run=str(self.recipe), overrides=[])))

    def picture(self) -> dict[str, Any]:
        """What it would draw now."""
        time.sleep(0.2)
        return self.watcher.look().to_json()


@pytest.fixture
def stage(
    tmp_path: Path, killable_node: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Watched]:
    monkeypatch.setenv(BROKER_VARIABLE, killable_node.url)
    stage = Watched(tmp_path, killable_node)
    stage.watcher.start()
    yield stage
    stage.watcher.stop()


def test_ten_staged_faults_are_named(stage: Watched) -> None:
    stage.start("up")
    named = []
    for name, seconds, finding in stage_all(stage):
        print(show(name, seconds, finding), flush=True)
        named.append(name)
        assert finding["do"]
    assert named == list(FAULTS)
    assert len(named) == 10
