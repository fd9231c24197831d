"""What a tracker is: anything that takes the trainer's lines.

`tracking.backends` names it, `tensorboard` or `package.module:name`; called with a `TrackedRun` it
gives a `Tracker`. Both happen in a thread of its own, so it may take its time.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from infra.roles.errors import ConfigError
from infra.roles.registry import resolve
from infra.runs.metrics import Kind
from schemas.config import RunConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """The run, as a tracker is told of it."""

    name: str
    run_id: str
    """The same when the run is resumed."""
    folder: Path
    """The run folder."""
    config: Mapping[str, Any]
    """The resolved recipe, without the broker's password."""


class Tracker(Protocol):
    """Takes lines until it is closed."""

    def log(self, kind: Kind, values: Mapping[str, float]) -> None:
        """One line: the metrics of the catalogue, `step` and `version`. Steps never fall, except
        when a resumed run tells of a step again."""

    def close(self) -> None:
        """The last line was told."""


Factory = Callable[[TrackedRun], Tracker]


def tracker_factory(name: str) -> Factory:
    """What makes the tracker that a recipe names.

    Raises:
        ConfigError: There is no such tracker.
    """
    factory: Factory = resolve("tracker", name)
    if not callable(factory):
        raise ConfigError(
            f"tracking.backends: {name!r} is a {type(factory).__name__}",
            hint="name a class, or a function that makes a tracker",
        )
    return factory


def check_trackers(config: RunConfig) -> list[str]:
    """Try those of a recipe: a line for each. One of your own is tried by its `check(config)`, if
    it has one: a text, or ConfigError.

    Raises:
        ConfigError: One is unknown, or would not work.
    """
    lines = []
    for name in config.tracking.backends:
        check = getattr(tracker_factory(name), "check", None)
        lines.append(f"{name}: {check(config) if check is not None else 'found'}")
    return lines or ["metrics.jsonl alone"]


def needed(package: str) -> ModuleType:
    """Import a tracker's own package.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ConfigError(
            f"tracking.backends: {package} cannot be imported: {error}",
            hint=f"pip install 'warren[{package}]', or leave it out",
        ) from error
