"""The one place to which the trainer tells its lines.

line --> metrics.jsonl (here and now) --> metrics endpoint --> queue of each tracker
"""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from infra.observe.tracking.feed import Feed
from infra.observe.tracking.tracker import TrackedRun, tracker_factory
from infra.roles.errors import ConfigError
from infra.roles.settings import as_json_tree
from infra.runs.folder import RunFolder
from infra.runs.metrics import Kind, MetricsFile
from schemas.config import RunConfig

if TYPE_CHECKING:
    from infra.observe.metrics.exporter import Exporter

logger = logging.getLogger(__name__)

CLOSE_S = 20.0
"""All trackers together have so long to take what is left."""


class Recorder:
    """Tells each line to everybody.

    Args:
        file: `metrics.jsonl`: the one that may fail the run.
        exporter: This process's metrics endpoint.
        feeds: Of the trackers.
    """

    def __init__(
        self, file: MetricsFile, exporter: "Exporter | None" = None, feeds: Sequence[Feed] = ()
    ) -> None:
        self._file = file
        self._exporter = exporter
        self._feeds = feeds

    @classmethod
    def open(
        cls, config: RunConfig, folder: RunFolder, *, run_id: str, exporter: "Exporter | None"
    ) -> Self:
        """With the trackers of a recipe; one that is not there is named and left out."""
        run = TrackedRun(
            name=config.run.name, run_id=run_id, folder=folder.root, config=as_json_tree(config)
        )
        feeds = []
        for name in config.tracking.backends:
            try:
                feeds.append(Feed(name, tracker_factory(name), run))
            except ConfigError as error:
                logger.warning("the run goes on without a tracker: %s", error)
        return cls(MetricsFile(folder.metrics), exporter, feeds)

    def append(self, kind: Kind, values: Mapping[str, Any]) -> None:
        """Tell a line. Blocking, as far as the disk is.

        Raises:
            WarrenError: The disk refused `metrics.jsonl`.
        """
        self._file.append(kind, values)
        if self._exporter is not None:
            self._exporter.hear_line(kind, values)
        if self._feeds:
            numbers = {
                name: float(value)
                for name, value in values.items()
                if isinstance(value, int | float)
            }
            for feed in self._feeds:
                feed.offer(kind, numbers)

    def close(self) -> None:
        """Let the trackers end, within `CLOSE_S`. Blocking."""
        deadline = time.monotonic() + CLOSE_S
        for feed in self._feeds:
            feed.close(max(0.1, deadline - time.monotonic()))
