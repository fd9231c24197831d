"""A private RabbitMQ node for the tests that are marked `broker`.

`broker_url`      one node for the whole session
`run_name`        a name of its own for each test, so that queues do not clash
`connect`         makes started `Broker`s for that run, closed at the end
`spare_node`      another one for the whole session, which tests leave as it was
`killable_node`   a node of the test's own, to be killed and restarted
"""

import asyncio
import contextlib
import os
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from infra.amqp.admin import Management
from infra.amqp.connection import Broker
from infra.amqp.errors import ManagementUnreachable
from infra.amqp.local_broker import LocalBroker
from infra.amqp.url import management_url

Connect = Callable[..., Awaitable[Broker]]


@contextlib.contextmanager
def _running(folder: Path) -> Iterator[LocalBroker]:
    node = LocalBroker(folder)
    node.start(timeout_s=120.0)
    yield node
    node.kill()


@pytest.fixture(scope="session")
def broker_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """The session's private node."""
    with _running(tmp_path_factory.mktemp("rabbitmq")) as node:
        yield node


@pytest.fixture(scope="session")
def broker_url(request: pytest.FixtureRequest) -> str:
    """URL of a broker: `WARREN_TEST_BROKER_URL`, else a private node."""
    given = os.environ.get("WARREN_TEST_BROKER_URL")
    return given or request.getfixturevalue("broker_node").url


@pytest.fixture(scope="session")
def spare_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """A second node, started."""
    with _running(tmp_path_factory.mktemp("spare")) as node:
        yield node


@pytest.fixture
def killable_node(tmp_path: object) -> Iterator[LocalBroker]:
    """A started node that this test may kill and restart."""
    node = LocalBroker(f"{tmp_path}/killable")
    node.start(timeout_s=120.0)
    yield node
    node.kill()


@pytest.fixture
def run_name(request: pytest.FixtureRequest) -> str:
    """A run name that no other test uses."""
    stem = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:40]
    return f"{stem}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
async def connect(request: pytest.FixtureRequest, run_name: str) -> AsyncIterator[Connect]:
    """Connects: `await connect(app_id="trainer/0", url=..., run=..., heartbeat_s=...)`."""
    brokers: list[Broker] = []

    async def make(
        *,
        app_id: str = "test/0",
        url: str | None = None,
        run: str | None = None,
        heartbeat_s: int = 20,
    ) -> Broker:
        broker = Broker(
            url or request.getfixturevalue("broker_url"),
            run=run or run_name,
            app_id=app_id,
            heartbeat_s=heartbeat_s,
        )
        brokers.append(broker)
        await broker.start()
        return broker

    yield make
    for broker in brokers:
        await broker.close(1.0)
    if "broker_url" in request.fixturenames:
        runs = {broker.run for broker in brokers} | {run_name}
        await asyncio.to_thread(_delete_queues, request.getfixturevalue("broker_url"), runs)


def _delete_queues(url: str, runs: set[str]) -> None:
    """Keep the session's node small."""
    management = Management(management_url(url))
    with contextlib.suppress(ManagementUnreachable):
        for run in runs:
            for queue in management.queues(run):
                management.delete_queue(run, queue.name)
