"""Weights & Biases. Its own settings decide where to: `WANDB_MODE=offline` needs no account,
`WANDB_PROJECT` and `WANDB_ENTITY` name the place. A resumed run goes on as the same one."""

import os
from collections.abc import Mapping
from typing import Any

from infra.observe.tracking.tracker import TrackedRun, needed
from infra.roles.errors import ConfigError
from infra.roles.registry import register
from infra.runs.metrics import Kind
from schemas.config import RunConfig

_NO_ACCOUNT = ("offline", "disabled", "dryrun")


@register("tracker", "wandb")
class Wandb:
    """One run of W&B."""

    def __init__(self, run: TrackedRun) -> None:
        wandb: Any = needed("wandb")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "warren"),
            name=run.name,
            id=run.run_id,
            resume="allow",
            dir=str(run.folder),
            config=dict(run.config),
            settings=wandb.Settings(silent=True, console="off"),
        )
        self._run.define_metric("*", step_metric="step")

    @staticmethod
    def check(config: RunConfig) -> str:
        """Find the package, and an account unless none is needed.

        Raises:
            ConfigError: One of them is missing.
        """
        wandb: Any = needed("wandb")
        mode = os.environ.get("WANDB_MODE", "online")
        if mode not in _NO_ACCOUNT and not wandb.login(prompt=False):
            raise ConfigError(
                "tracking.backends: wandb has no account to log to",
                hint="run 'wandb login', or set WANDB_MODE=offline and 'wandb sync' later",
            )
        return f"wandb {wandb.__version__}, {mode}"

    def log(self, kind: Kind, values: Mapping[str, float]) -> None:
        """One row; `step` is the axis."""
        self._run.log(dict(values))

    def close(self) -> None:
        """End the run."""
        self._run.finish()
