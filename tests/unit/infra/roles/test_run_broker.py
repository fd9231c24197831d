"""Looking after a private node that ends."""

import logging
import socket
from pathlib import Path

import pytest

from infra.roles.errors import BrokerUnreachable
from infra.roles.fleet.private_broker import RunBroker, await_configured
from infra.roles.settings import load_config


class Node:
    """Runs until it is ended; comes back where it is told to."""

    def __init__(self, comes_back_at: str) -> None:
        self.running, self.starts, self.url = True, 0, comes_back_at
        self.folder, self.pids = Path("/run/broker"), (7, 8)

    def start(self, timeout_s: float) -> str:
        self.running, self.starts = True, self.starts + 1
        return self.url


def test_a_node_that_ended_is_started_again(caplog: pytest.LogCaptureFixture) -> None:
    node = Node("amqp://here")
    broker = RunBroker("amqp://here", node)
    broker.look_after()
    assert node.starts == 0
    node.running = False
    with caplog.at_level(logging.INFO):
        broker.look_after()
    assert (node.starts, node.running) == (1, True)
    assert "the private broker has ended; starting it again on its data" in caplog.text


def test_a_node_that_ends_again_and_again_is_given_up() -> None:
    node = Node("amqp://here")
    broker = RunBroker("amqp://here", node)
    with pytest.raises(BrokerUnreachable, match="ends too often"):
        for _ in range(10):
            node.running = False
            broker.look_after()
    assert node.starts == 5


def test_a_node_that_comes_back_elsewhere_is_of_no_use() -> None:
    node = Node("amqp://there")
    node.running = False
    with pytest.raises(BrokerUnreachable, match="another process took its port"):
        RunBroker("amqp://here", node).look_after()


def test_a_broker_that_is_not_ours_is_left_alone() -> None:
    broker = RunBroker("amqp://elsewhere")
    broker.look_after()
    assert (broker.private, broker.pids) == (False, ())


def test_a_configured_broker_is_tried_before_anything_begins(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"amqp://u:secret@127.0.0.1:{unused.getsockname()[1]}/"
        monkeypatch.setenv("WARREN_BROKER_URL", url)
        with pytest.raises(BrokerUnreachable, match=r"no broker answers at 127\.0\.0\.1:"):
            await_configured(load_config("demo"), patience_s=0.0)
    assert "secret" not in caplog.text
