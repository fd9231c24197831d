"""What the dashboard and the alert rules ask of RabbitMQ is what its plugin tells."""

import asyncio
from urllib.parse import urlsplit

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from infra.amqp.url import management_url
from tests.broker_fixtures import Connect
from tests.unit.infra.deploy.grafana import FOLDER, expressions, names_in

pytestmark = pytest.mark.broker


async def test_rabbitmq_tells_every_metric_that_is_asked_of_it(
    broker_url: str, connect: Connect
) -> None:
    await connect()
    jobs = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]
    port = (urlsplit(management_url(broker_url)).port or 0) + 1
    asked = {n for one in expressions() for n in names_in(one) if n.startswith("rabbitmq_")}
    labels: dict[str, set[str]] = {}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
        async with asyncio.timeout(60):  # it collects every five seconds
            while not asked <= labels.keys():
                for job in jobs[1:]:
                    path, families = job.get("metrics_path", "/metrics"), job.get("params", {})
                    answer = await client.get(path, params=families)
                    for family in text_string_to_metric_families(answer.raise_for_status().text):
                        for sample in family.samples:
                            labels.setdefault(sample.name, set()).update(sample.labels)
                await asyncio.sleep(0.5)
    assert all("queue" in labels[name] for name in asked if "detailed_queue" in name)
