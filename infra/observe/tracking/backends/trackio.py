"""trackio: a local database that `trackio show` draws, without an account. `TRACKIO_DIR` says where
it is, `TRACKIO_PROJECT` what it is called."""

import os
from collections.abc import Mapping
from typing import Any

from infra.observe.tracking.tracker import TrackedRun, needed
from infra.roles.registry import register
from infra.runs.metrics import Kind
from schemas.config import RunConfig


@register("tracker", "trackio")
class Trackio:
    """One run of trackio."""

    def __init__(self, run: TrackedRun) -> None:
        trackio: Any = needed("trackio")
        self._run = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", "warren"),
            name=f"{run.name}-{run.run_id[:8]}",
            config=dict(run.config),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    @staticmethod
    def check(config: RunConfig) -> str:
        """Find the package.

        Raises:
            ConfigError: It is missing.
        """
        return f"trackio {needed('trackio').__version__}"

    def log(self, kind: Kind, values: Mapping[str, float]) -> None:
        """One row."""
        metrics = {name: value for name, value in values.items() if "/" in name}
        self._run.log(metrics, step=int(values["step"]))

    def close(self) -> None:
        """Write what is left."""
        self._run.finish()
