"""`check`: everything a run needs, tried before it starts. One line each."""

import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from infra.roles.broker_url import BROKER_VARIABLE, configured_url
from infra.roles.command.check_row import check_gold, check_prompt
from infra.roles.errors import ConfigError, ExitCode, WarrenError
from infra.runs.folder import RunFolder
from schemas.config import RunConfig

_MODEL_FILES = ("config.json", "tokenizer_config.json")
_WEIGHTS = ("*.safetensors",)


def check(config: RunConfig, roles: Mapping[str, str]) -> int:
    """Try everything and print a line for each; 2 when something failed."""

    def load(role: str) -> Any:
        return importlib.import_module(roles[role])

    probes: dict[str, Callable[[], list[str]]] = {
        "recipe": lambda: [f"run {config.run.name}, {config.run.steps} steps"],
        "model": lambda: [check_model(config)],
        "broker": lambda: [check_broker(config)],
        "weight store": lambda: [check_store(config)],
        **{role: _role_probe(config, module) for role, module in roles.items()},
        "first prompt": lambda: [check_prompt(config, load("producer"), load("rollout"))],
        "gold answer": lambda: [
            check_gold(config, load("producer"), load("rollout"), load("reward"))
        ],
    }
    outcomes = [_show(name, probe) for name, probe in probes.items()]
    failed = outcomes.count(False)
    sys.stdout.write(f"{failed} of {len(outcomes)} FAILED\n" if failed else "ready to run\n")
    return ExitCode.USAGE if failed else ExitCode.DONE


def check_model(config: RunConfig) -> str:
    """The folder looks like a model: config, tokenizer and safetensors weights.

    Raises:
        ConfigError: What is missing.
    """
    folder = Path(config.model.path)
    if not folder.is_dir():
        raise ConfigError(
            f"model.path = {config.model.path!r}: no such folder (from {Path.cwd()})",
            hint="give a Hugging Face model folder; relative paths start where the command runs",
        )
    for name in _MODEL_FILES:
        if not (folder / name).exists():
            raise ConfigError(f"{folder} has no {name}", hint="it is no Hugging Face model folder")
    weights = [path for pattern in _WEIGHTS for path in folder.glob(pattern)]
    if not weights:
        raise ConfigError(
            f"{folder} has no weights (*.safetensors)",
            hint="save the model with safetensors; .bin files are not read",
        )
    kind = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type", "?")
    size = sum(path.stat().st_size for path in weights)
    return f"{folder}: {kind}, {size / 1e6:.1f} MB in {len(weights)} file(s)"


def check_broker(config: RunConfig) -> str:
    """The configured broker answers, or a private one can be had.

    Raises:
        BrokerUnreachable: Neither.
    """
    url = configured_url(config)
    if url:
        from infra.amqp.probe import probe
        from infra.amqp.url import mask_url

        return f"{probe(url)} answers at {mask_url(url)}"
    from infra.amqp.node.container import Container
    from infra.amqp.node.install import find_install, not_installed

    install = find_install()
    if install is None and not Container.available():
        raise not_installed()
    where = f"RabbitMQ below {install.prefix}" if install is not None else "a container"
    return f"no {BROKER_VARIABLE}: a private node will run from {where}"


def check_store(config: RunConfig) -> str:
    """The weight store can be written.

    Raises:
        ConfigError: It cannot.
    """
    store = RunFolder.of(config).weights(config)
    parent = next(path for path in (store, *store.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=parent):
            pass
    except OSError as error:
        raise ConfigError(
            f"cannot write the weight store {store}: {parent}: {os.strerror(error.errno or 0)}",
            hint="choose a writable folder with weights.store=... or run.dir=...",
        ) from error
    return f"{store} can be written"


def _role_probe(config: RunConfig, module: str) -> Callable[[], list[str]]:
    return lambda: list(importlib.import_module(module).check(config))


def _show(name: str, probe: Callable[[], list[str]]) -> bool:
    try:
        lines = probe()
    except WarrenError as error:
        sys.stdout.write(f"FAILED  {name:<13} {error}\n")
        return False
    except ImportError as error:
        sys.stdout.write(f"FAILED  {name:<13} {error}\n  -> install what is missing: make env\n")
        return False
    for line in lines:
        sys.stdout.write(f"ok      {name:<13} {line}\n")
    return True
