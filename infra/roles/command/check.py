"""`check`: everything a run needs, tried before it starts. One line each."""

import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.observe.columns import trimmed
from infra.observe.tracking.tracker import check_trackers
from infra.roles.broker_url import BROKER_VARIABLE, configured_url
from infra.roles.command.check_row import check_gold, check_prompt
from infra.roles.errors import ConfigError, ExitCode, WarrenError
from infra.runs.folder import RunFolder
from schemas.config import RunConfig

_MODEL_FILES = ("config.json", "tokenizer_config.json")
_WEIGHTS = ("*.safetensors",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One thing to try."""

    name: str
    run: Callable[[], list[str]]
    """Lines about what was found; raises WarrenError or ImportError."""
    needs: tuple[str, ...] = ()
    """Probes without which this one would only report their fault again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a probe came to."""

    name: str
    lines: tuple[str, ...] = ()
    fault: str = ""
    missing: str = ""
    """The probe that it needs and that failed."""


def check(config: RunConfig, roles: Mapping[str, str]) -> int:
    """Try everything and print a line for each; 2 when something failed."""
    outcomes = []
    for outcome in try_all(all_probes(config, roles)):
        outcomes.append(outcome)
        sys.stdout.write(_shown(outcome))
        sys.stdout.flush()
    failed = [outcome.name for outcome in outcomes if outcome.fault]
    skipped = sum(bool(outcome.missing) for outcome in outcomes)
    more = f"; {skipped} skipped" if skipped else ""
    sys.stdout.write(f"FAILED: {', '.join(failed)}{more}\n" if failed else "ready to run\n")
    return ExitCode.USAGE if failed else ExitCode.DONE


def quick_probes(config: RunConfig, roles: Mapping[str, str]) -> list[Probe]:
    """What can be tried within seconds, without a broker and without a model in memory."""
    needs = {"rollout": ("model",), "trainer": ("model", "weight store")}
    return [
        Probe(name="model", run=lambda: [check_model(config)]),
        Probe(name="weight store", run=lambda: [check_store(config)]),
        Probe(name="trackers", run=lambda: check_trackers(config)),
        *(
            Probe(name=role, run=_role_probe(config, module), needs=needs.get(role, ()))
            for role, module in roles.items()
        ),
    ]


def all_probes(config: RunConfig, roles: Mapping[str, str]) -> list[Probe]:
    """Everything that `check` tries."""

    def load(role: str) -> Any:
        return importlib.import_module(roles[role])

    def prompt() -> list[str]:
        return [check_prompt(config, load("producer"), load("rollout"))]

    def gold() -> list[str]:
        return [check_gold(config, load("producer"), load("rollout"), load("reward"))]

    return [
        Probe(name="recipe", run=lambda: [f"run {config.run.name}, {config.run.steps} steps"]),
        Probe(name="broker", run=lambda: [check_broker(config)]),
        *quick_probes(config, roles),
        Probe(name="first prompt", run=prompt, needs=("producer", "rollout")),
        Probe(name="gold answer", run=gold, needs=("producer", "rollout", "reward")),
    ]


def try_all(probes: Iterable[Probe]) -> Iterator[Outcome]:
    """Run each, unless something that it needs has failed."""
    bad: set[str] = set()
    for probe in probes:
        missing = next((name for name in probe.needs if name in bad), "")
        outcome = Outcome(name=probe.name, missing=missing) if missing else _try(probe)
        if missing or outcome.fault:
            bad.add(probe.name)
        yield outcome


def _try(probe: Probe) -> Outcome:
    try:
        return Outcome(name=probe.name, lines=tuple(probe.run()))
    except WarrenError as error:
        return Outcome(name=probe.name, fault=str(error))
    except ImportError as error:
        return Outcome(name=probe.name, fault=f"{error}\n  -> install what is missing: make env")


def _shown(outcome: Outcome) -> str:
    if outcome.fault:
        return f"FAILED  {outcome.name:<13} {outcome.fault}\n"
    if outcome.missing:
        return f"skipped {outcome.name:<13} needs {outcome.missing}\n"
    return trimmed("".join(f"ok      {outcome.name:<13} {line}\n" for line in outcome.lines))


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
    try:
        read = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        kind = read.get("model_type", "?")
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"{folder / 'config.json'} cannot be read: {error}", hint="copy the model folder again"
        ) from error
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
    location = RunFolder.of(config).weights(config)
    if "://" in location:
        from infra.weights.store import WeightStore

        far = WeightStore.at(location)
        far.check()
        return f"{far.where} can be written"
    store = Path(location)
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
