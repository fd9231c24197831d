"""Asks what Prometheus asks: `python -m tests.benchmarks.observing.scraper RUN`, until ended."""

import asyncio
import contextlib
import sys
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from infra.amqp.url import management_url
from infra.observe.metrics.exporter import port_of
from infra.roles.names import planned
from infra.roles.settings import load_config

PERIOD_S = 5.0
FAMILIES = {"family": ["queue_coarse_metrics", "queue_consumer_count"]}


async def scrape(folder: Path) -> None:
    """Every endpoint of a run on this machine and RabbitMQ's, until cancelled."""
    config = load_config(folder)
    url = (folder / "broker" / "url").read_text(encoding="utf-8").strip()
    plugin = (urlsplit(management_url(url)).port or 0) + 1
    asked = [(port_of(config, name), "/metrics", {}) for _, name, _ in planned(config)]
    asked += [(plugin, "/metrics", {}), (plugin, "/metrics/detailed", FAMILIES)]
    async with httpx.AsyncClient() as client:
        while True:
            for port, path, query in asked:
                with contextlib.suppress(httpx.HTTPError):
                    await client.get(f"http://127.0.0.1:{port}{path}", params=query)
            await asyncio.sleep(PERIOD_S)


if __name__ == "__main__":
    asyncio.run(scrape(Path(sys.argv[1])))
