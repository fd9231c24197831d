"""Each of ten faults on a real run is named by the monitor, in words that say what to do."""

from pathlib import Path

import pytest

from infra.amqp.local_broker import LocalBroker
from tests.e2e.faults import FAULTS, show, stage_all
from tests.e2e.stage import Stage

pytestmark = [pytest.mark.broker, pytest.mark.timeout(1200)]


def test_ten_staged_faults_are_named(tmp_path: Path, killable_node: LocalBroker) -> None:
    stage = Stage(tmp_path, killable_node)
    stage.start("up")
    named = []
    for name, seconds, finding in stage_all(stage):
        print(show(name, seconds, finding), flush=True)
        named.append(name)
        assert finding["do"]
    assert named == list(FAULTS)
    assert len(named) == 10
