"""The catalogue against a run of every role: nothing is told that it lacks, nothing in it is never
told; and the same numbers are at the endpoints and in TensorBoard."""

import asyncio
import contextlib
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from infra.amqp.codec import decode
from infra.amqp.connection import Broker
from infra.observe.metrics.beats import ROLES, numbers_of
from infra.observe.metrics.catalog import CATALOG, find
from infra.observe.metrics.lines import COORDINATES
from infra.observe.metrics.metric import Source
from infra.runs.metrics import read_metrics
from schemas.control import Heartbeat
from tests.broker_fixtures import Connect
from tests.e2e.runs import start, write_recipe

pytestmark = [pytest.mark.broker, pytest.mark.timeout(400)]
STEPS = 12
SETTINGS = (
    "data.eval=[{path='train.jsonl'}]",
    "eval.prompts=4",
    "tracking.backends=['tensorboard']",
    "tracking.prometheus_port=17400",
)
NOT_IN_A_GOOD_RUN = {"total/given_up"}


class Watcher:
    """Hears heartbeats, and scrapes the endpoints that they name."""

    def __init__(self) -> None:
        self.told: set[str] = set()
        """Names in heartbeats."""
        self.ports: dict[str, int] = {}
        """Worker -> its endpoint."""
        self.served: dict[str, set[str]] = {role: set() for role in ROLES}
        """Role -> names of samples at its endpoints."""

    async def hear(self, broker: Broker) -> None:
        async for delivery in broker.events():
            if delivery.envelope.type == Heartbeat.__name__:
                beat = decode(delivery, delivery.body, Heartbeat)
                self.told |= set(numbers_of(beat))
                self.ports[beat.worker] = beat.metrics_port

    async def scrape(self) -> None:
        async with httpx.AsyncClient() as client:
            while True:
                for worker, port in list(self.ports.items()):
                    with contextlib.suppress(httpx.HTTPError):  # it has left
                        await self._scrape_one(client, worker, port)
                await asyncio.sleep(0.1)

    async def _scrape_one(self, client: httpx.AsyncClient, worker: str, port: int) -> None:
        answer = await client.get(f"http://127.0.0.1:{port}/metrics")
        for family in text_string_to_metric_families(answer.text):
            for sample in family.samples:
                assert sample.labels["worker"] == worker
                self.served[worker.partition("-")[0]].add(sample.name)


async def test_what_a_run_tells_is_the_catalogue(
    tmp_path: Path, untaught_folder: Path, broker_url: str, run_name: str, connect: Connect
) -> None:
    recipe = write_recipe(tmp_path, run_name, model=untaught_folder, steps=STEPS)
    broker, watcher = await connect(app_id="test/watcher"), Watcher()
    tasks = [asyncio.create_task(watcher.hear(broker)), asyncio.create_task(watcher.scrape())]
    up = start(tmp_path, "up", str(recipe), *SETTINGS, url=broker_url)
    assert await asyncio.to_thread(up.exit_code, 300) == 0, up.output()
    for task in tasks:
        assert not task.done(), task.exception()
        task.cancel()

    folder = tmp_path / "runs" / run_name
    lines = list(read_metrics(folder / "metrics.jsonl"))
    written = {name for line in lines for name in line} - {*COORDINATES}
    told = written | watcher.told
    assert sorted(name for name in told if find(name) is None) == []
    entries = {metric for name in told for metric, _ in [find(name) or (None, {})]}
    assert {metric.name for metric in CATALOG if metric not in entries} == NOT_IN_A_GOOD_RUN

    for role in ROLES:
        named = [m for m in CATALOG if m.role == role and m.source is not Source.END]
        assert watcher.served[role] == {metric.prometheus for metric in named}, role
    ports = [watcher.ports[name] for name in ("trainer", "producer-1", "rollout-1", "reward-1")]
    assert all(ports) and len(set(watcher.ports.values())) == len(watcher.ports)

    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    assert set(events.Tags()["scalars"]) == written
    losses = {line["step"]: line["train/loss"] for line in lines if line["kind"] == "step"}
    shown = {event.step: event.value for event in events.Scalars("train/loss")}
    assert shown == pytest.approx(losses)
