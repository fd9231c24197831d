"""The Prometheus endpoint of one process.

    role's loop: heartbeat, every 2 s --+
    trainer: line of a step ------------+--> newest numbers <-- scrape, in a thread of the server's

Nothing here waits for a scrape: the loop leaves numbers behind, and who asks gets the newest.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from infra.observe.metrics.beats import numbers_of
from infra.observe.metrics.catalog import find
from infra.observe.metrics.lines import COORDINATES
from infra.observe.metrics.metric import Kind, Metric
from infra.roles.names import planned
from schemas.config import RunConfig
from schemas.control import Heartbeat

logger = logging.getLogger(__name__)


class Exporter(Collector):
    """Serves what its process told last, at `/metrics`.

    Args:
        run: Name of the run, a label of everything.
        worker: Of the process, likewise.
    """

    def __init__(self, *, run: str, worker: str) -> None:
        self._labels = {"run": run, "worker": worker}
        self._newest: dict[str, dict[str, float]] = {}
        self._server: Any = None
        self.port = 0
        """That it listens at; 0 before `listen`."""

    def listen(self, host: str, port: int) -> None:
        """Begin to serve.

        Raises:
            OSError: The address or the port cannot be had.
        """
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        self._server, _ = start_http_server(port, host, registry)
        self.port = int(self._server.server_port)

    def hear_beat(self, beat: Heartbeat) -> None:
        """Serve what a heartbeat tells from now on."""
        self._newest["beat"] = numbers_of(beat)

    def hear_line(self, kind: str, values: Mapping[str, Any]) -> None:
        """Serve a line of the trainer's metrics in place of the one of its kind before; not the
        last one, for which its process does not stay."""
        if kind == "end":
            return
        self._newest[kind] = {
            name: float(value)
            for name, value in values.items()
            if name not in COORDINATES and isinstance(value, int | float)
        }

    def collect(self) -> Iterable[Family]:
        """For one scrape: everything in families, in the order of the names."""
        numbers: dict[str, float] = {}
        for newest in list(self._newest.values()):
            numbers |= newest
        families: dict[str, Family] = {}
        for name, value in sorted(numbers.items()):
            if (found := find(name)) is None:
                continue  # a plug-in's own: it is in metrics.jsonl and in heartbeats
            metric, parts = found
            labels = {**self._labels, **parts}
            family = families.setdefault(metric.prometheus, _family(metric, tuple(labels)))
            family.add_metric(tuple(labels.values()), value)  # type: ignore[attr-defined]
        return families.values()

    def close(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


def start_exporter(config: RunConfig, *, worker: str) -> Exporter | None:
    """The endpoint that `[tracking]` asks of this process; None when it asks for none, or when no
    port can be had: nothing that watches a run may keep it from running."""
    host, base = config.tracking.prometheus_host, config.tracking.prometheus_port
    if not base:
        return None
    exporter = Exporter(run=config.run.name, worker=worker)
    wanted = port_of(config, worker)
    try:
        try:
            exporter.listen(host, wanted)
        except OSError as error:
            if not wanted:
                raise
            logger.warning("port %d for metrics: %s; taking a free one", wanted, error)
            exporter.listen(host, 0)
    except OSError as error:
        logger.warning("no metrics endpoint at tracking.prometheus_host = %r: %s", host, error)
        return None
    logger.info("metrics at http://%s:%d/metrics", host, exporter.port)
    return exporter


def port_of(config: RunConfig, worker: str) -> int:
    """The port of a process that `up` starts: the base, and its place in the order; 0, any free
    one, for the others."""
    names = [name for _, name, _ in planned(config)]
    return config.tracking.prometheus_port + names.index(worker) if worker in names else 0


def _family(metric: Metric, labels: tuple[str, ...]) -> Family:
    kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    text = f"{metric.name} [{metric.unit}]: {metric.meaning}"
    return kind(metric.prometheus, text, labels=labels)
