"""Checkpoints: `step_<n>/state/` to resume, bit for bit, and `step_<n>/hf/` for other tools."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from consumers.trainer.learn.learner import Learner


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a checkpoint held besides weights and optimizer, which the learner has now."""

    step: int
    extra: dict[str, Any]
    config: dict[str, Any]
    weights_sha256: str


def save(checkpoints: Path, learner: Learner, extra: dict[str, Any], *, keep: int) -> Path:
    """Write `checkpoints/step_<n>` durably, prune to the newest `keep`, return the new folder."""
    raise NotImplementedError


def load(folder: Path, learner: Learner) -> Restored:
    """Restore weights, optimizer, step and random generators from one `step_<n>` folder."""
    raise NotImplementedError


def latest(checkpoints: Path) -> Path | None:
    """The newest complete `step_<n>` folder; half-written ones are ignored."""
    raise NotImplementedError
