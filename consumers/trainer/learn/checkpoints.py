"""Checkpoints: `step_<n>/state/` to resume, bit for bit, and `step_<n>/hf/` for other tools.

state/weights.safetensors     float32 masters by name
state/optimizer.safetensors   exp_avg.<name> and exp_avg_sq.<name>
state/state.json              step, hashes, random generators, configuration, the caller's extra

A folder is written under a name that `latest` ignores, made durable, then renamed: whatever bears
the name `step_<n>` is complete.
"""

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from consumers.trainer.learn import durable_folders
from consumers.trainer.learn.learner import Learner
from consumers.trainer.learn.random_states import random_states, set_random_states
from infra.roles.errors import ConfigError, WarrenError
from infra.roles.settings import as_json_tree

logger = logging.getLogger(__name__)

SCHEMA_VERSION = 1
WEIGHTS = "weights.safetensors"
OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"


class CheckpointUnusable(WarrenError):
    """A checkpoint is damaged, or holds other weights than those to be saved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a checkpoint held besides weights and optimizer, which the learner has now."""

    step: int
    extra: dict[str, Any]
    config: dict[str, Any]
    """The run configuration it was saved under."""
    weights_sha256: str


def save(checkpoints: Path, learner: Learner, extra: Mapping[str, Any], *, keep: int) -> Path:
    """Write `checkpoints/step_<n>` durably, prune to the newest `keep`, return the new folder.

    A checkpoint of this step with the same weights keeps them and takes the new `extra`.

    Args:
        checkpoints: Folder of all checkpoints of the run; created.
        learner: Between two steps.
        extra: JSON values that the caller needs to resume.
        keep: Newest checkpoints to keep, at least 1.

    Raises:
        CheckpointUnusable: This step already has a checkpoint with other weights.
        OSError: The disk is full or not writable; nothing bears the new name.
    """
    target = checkpoints / f"step_{learner.step_done}"
    if target.exists():
        state = _read_state(target)
        if state["weights_sha256"] != learner.policy.sha256():
            raise CheckpointUnusable(
                f"{target} exists and holds other weights",
                hint="another history of this run wrote it; move it away to save this one",
            )
        config = as_json_tree(learner.config)
        state |= {"extra": dict(extra), "random": random_states(), "config": config}
        durable_folders.replace_text(target / "state" / STATE, _to_text(state))
        return target
    try:
        durable_folders.create(target, lambda folder: _write(folder, learner, extra))
    except SafetensorError as error:  # so it calls a write that the disk refused
        raise OSError(str(error)) from error
    durable_folders.prune(checkpoints, keep)
    logger.info("checkpoint %s", target)
    return target


def load(folder: Path, learner: Learner) -> Restored:
    """Restore weights, optimizer, step and random generators from one `step_<n>` folder.

    Raises:
        CheckpointUnusable: A file is missing or damaged.
        ConfigError: It is of another model, or of another release. In both cases the learner is
            as before.
    """
    state = _read_state(folder)
    weights, moments = (_read_tensors(folder, state, name) for name in (WEIGHTS, OPTIMIZER))
    try:
        learner.policy.load_masters(weights)
    except ValueError as error:
        raise ConfigError(
            f"{folder} does not fit model.path={str(learner.policy.model_folder)!r}: {error}",
            hint="resume with the model, and the trainer.lora_ keys, that the run began with, or "
            "begin another run",
        ) from error
    _set_moments(learner, moments, state["optimizer_steps"])
    learner.step_done = state["step"]
    set_random_states(state["random"])
    if state["num_threads"] != torch.get_num_threads():
        logger.warning(
            "checkpoint of %d torch threads, now %d: steps may differ in the last bits",
            state["num_threads"],
            torch.get_num_threads(),
        )
    return Restored(
        step=state["step"],
        extra=state["extra"],
        config=state["config"],
        weights_sha256=state["weights_sha256"],
    )


def read_extra(folder: Path) -> dict[str, Any]:
    """What the caller of `save` gave, without loading a tensor.

    Raises:
        CheckpointUnusable: The folder says nothing that can be read.
        ConfigError: It is of another release.
    """
    extra: dict[str, Any] = _read_state(folder)["extra"]
    return extra


def read_config(folder: Path) -> dict[str, Any]:
    """The run configuration it was saved under; raises as `read_extra`."""
    config: dict[str, Any] = _read_state(folder)["config"]
    return config


def latest(checkpoints: Path) -> Path | None:
    """The newest complete `step_<n>` folder, or None."""
    complete = (
        folder
        for folder in reversed(durable_folders.step_folders(checkpoints))
        if _is_complete(folder)
    )
    return next(complete, None)


def _write(folder: Path, learner: Learner, extra: Mapping[str, Any]) -> None:
    inner = folder / "state"
    inner.mkdir(parents=True)
    masters = {
        name: parameter.detach().cpu().contiguous()
        for name, parameter in learner.policy.masters().items()
    }
    save_file(masters, inner / WEIGHTS)
    moments, optimizer_steps = _moments(learner)
    save_file(moments, inner / OPTIMIZER)
    state = {
        "schema_version": SCHEMA_VERSION,
        "step": learner.step_done,
        "optimizer_steps": optimizer_steps,
        "weights_sha256": learner.policy.sha256(),
        "files": {name: _describe(inner / name) for name in (WEIGHTS, OPTIMIZER)},
        "num_threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "config": as_json_tree(learner.config),
        "extra": dict(extra),
        "random": random_states(),
    }
    durable_folders.write_text(inner / STATE, _to_text(state))
    learner.policy.save_hf(folder / "hf", learner.config.model.dtype)


def _to_text(state: Mapping[str, Any]) -> str:
    return json.dumps(state, indent=1, allow_nan=False) + "\n"


def _moments(learner: Learner) -> tuple[dict[str, torch.Tensor], dict[str, int]]:
    tensors: dict[str, torch.Tensor] = {}
    steps: dict[str, int] = {}
    for name, parameter in learner.policy.masters().items():
        state = learner.optimizer.state.get(parameter)
        if not state:
            continue
        steps[name] = int(state["step"])
        for moment in ("exp_avg", "exp_avg_sq"):
            tensors[f"{moment}.{name}"] = state[moment].detach().cpu().contiguous()
    return tensors, steps


def _set_moments(
    learner: Learner, tensors: Mapping[str, torch.Tensor], steps: Mapping[str, int]
) -> None:
    learner.optimizer.state.clear()
    for name, parameter in learner.policy.masters().items():
        if name in steps:
            device = parameter.device
            learner.optimizer.state[parameter] = {
                "step": torch.tensor(float(steps[name]), dtype=torch.float32, device=device),
                "exp_avg": tensors[f"exp_avg.{name}"].to(device, copy=True),
                "exp_avg_sq": tensors[f"exp_avg_sq.{name}"].to(device, copy=True),
            }


def _read_state(folder: Path) -> dict[str, Any]:
    path = folder / "state" / STATE
    try:
        state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointUnusable(f"{path} cannot be read: {error}", hint=_OTHER) from error
    if state.get("schema_version") != SCHEMA_VERSION:
        raise ConfigError(
            f"{path} has schema_version {state.get('schema_version')!r}, not {SCHEMA_VERSION}",
            hint="resume it with the release that wrote it",
        )
    return state


def _read_tensors(folder: Path, state: Mapping[str, Any], name: str) -> dict[str, torch.Tensor]:
    path = folder / "state" / name
    try:
        if _describe(path) != state["files"][name]:
            raise CheckpointUnusable(f"{path} is damaged: its checksum differs", hint=_OTHER)
        tensors: dict[str, torch.Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointUnusable(f"{path} cannot be read: {error}", hint=_OTHER) from error
    return tensors


_OTHER = "move this folder away: the checkpoint before it is then used, and the journal replayed"


def _is_complete(folder: Path) -> bool:
    """Cheap: names and sizes. `load` verifies the contents."""
    inner = folder / "state"
    try:
        files = json.loads((inner / STATE).read_text(encoding="utf-8"))["files"]
        return all(files[name]["size_bytes"] == (inner / name).stat().st_size for name in files)
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("ignoring the incomplete checkpoint %s: %s", folder, error)
        return False


def _describe(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"size_bytes": path.stat().st_size, "sha256": digest}
