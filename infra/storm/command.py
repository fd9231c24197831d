"""`run.py storm RECIPE`: a calm run, the storm, then the verdict.

    calm run (unless it is there) --> broker, proxy, up --> first step --> faults for N minutes
                                                                                |
    verdict, storm.json <-- up ends <-- up --resume, a few more steps <-- up told to leave

How long a storm lasts is said in minutes, how long a run in steps. So `up` starts with more steps
than it can do, is told to leave when the last fault is recovered from and all that was open then
has ended, and goes on from where it was (an interruption of everything at once) to its end.
"""

import asyncio
import logging
import os
import shutil
from collections.abc import Collection
from pathlib import Path

from infra.observe.logs import set_up_logging
from infra.roles.broker_url import BROKER_VARIABLE
from infra.roles.errors import ConfigError, ExitCode, WarrenError
from infra.roles.fleet.run_folder import claimed
from infra.roles.lifecycle import report
from infra.runs.folder import RunFolder
from infra.storm.runs import UpProcess, calm_config, is_finished, write_recipe
from infra.storm.screen import say
from schemas.config import RunConfig, SuperviseSection
from schemas.storm import FaultKind

KILLS_PER_MINUTE = 11
_CALM_TIMEOUT_S = 1800.0


def run(
    config: RunConfig,
    *,
    minutes: float,
    seed: int,
    kinds: str = "",
    kills: int | None = None,
    purge: bool = False,
    entry: Path,
    again: str = "",
) -> int:
    """Storm a run; the exit code: 0 only without a breach.

    Args:
        config: The run. Its `run.steps` are those of the undisturbed run for comparison.
        minutes: How long faults are injected.
        seed: Of the schedule, and of every choice in it.
        kinds: Faults to inject, separated by commas; empty: all.
        kills: SIGKILLs among them; None: eleven a minute.
        purge: Remove what an earlier storm of this name left.
        entry: The front door.
        again: The command that repeats this storm.

    Raises:
        ConfigError: An unknown fault, the run folder is there already or in use, the recipe
            names a broker.
    """
    set_up_logging("storm")
    logging.getLogger("infra.amqp").setLevel(logging.ERROR)  # that its broker is away it knows
    chosen = parse_kinds(kinds)
    config = stormproof(config)
    folder = RunFolder.of(config)
    own = folder.root.with_name(f"{folder.root.name}-storm")
    _make_room(config, folder.root, own, purge=purge)
    try:
        calm = asyncio.run(_calm(config, entry))
        from infra.storm.storm import Storm

        storm = Storm(
            config,
            folder,
            own,
            seed=seed,
            minutes=minutes,
            kinds=chosen,
            kills=round(KILLS_PER_MINUTE * minutes) if kills is None else kills,
            entry=entry,
        )
        return asyncio.run(storm.run(calm, again=again))
    except WarrenError as error:
        return report(error)


def stormproof(config: RunConfig) -> RunConfig:
    """The run with a supervisor that does not tire of starting roles again."""
    supervise = SuperviseSection(
        restarts=100_000,
        window=config.supervise.window,
        backoff=min(config.supervise.backoff, 0.5),
        max_backoff=min(config.supervise.max_backoff, 2.0),
        leavers=True,
    )
    return config.model_copy(update={"supervise": supervise})


def parse_kinds(text: str) -> Collection[FaultKind]:
    """`kill,cut` -> the kinds; empty: all.

    Raises:
        ConfigError: One of them is unknown.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    known = {kind.value for kind in FaultKind}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigError(
            f"unknown fault {unknown[0]!r}", hint=f"--kinds takes: {', '.join(FaultKind)}"
        )
    return frozenset(FaultKind(name) for name in names) or frozenset(FaultKind)


async def _calm(config: RunConfig, entry: Path) -> Path:
    """The folder of the undisturbed run of the same recipe and seed; it is run if need be.

    Raises:
        WarrenError: It failed: no storm can be blamed for that.
    """
    calm = calm_config(config)
    folder = RunFolder.of(calm)
    if is_finished(calm):
        return folder.root
    say(f"first the undisturbed run, {calm.run.steps} steps, in {folder.root}")
    folder.root.parent.mkdir(parents=True, exist_ok=True)
    log = folder.root.parent / f"{calm.run.name}.log"
    recipe = write_recipe(calm, log.with_suffix(".json"))
    flags = ["--purge"] if folder.config.exists() else []
    process = UpProcess(entry, recipe, *flags, log=log, environment=os.environ)
    try:
        code = await process.ended(_CALM_TIMEOUT_S)
    finally:
        process.kill()
    if code != ExitCode.DONE:
        raise WarrenError(
            f"the undisturbed run failed ({'too slow' if code is None else f'exit code {code}'})",
            hint=f"what it said is in {log}",
        )
    return folder.root


def _make_room(config: RunConfig, *folders: Path, purge: bool) -> None:
    if os.environ.get(BROKER_VARIABLE) or config.broker.url:
        raise ConfigError(
            "a storm kills its broker, so it brings its own: none may be configured",
            hint=f"unset {BROKER_VARIABLE}, and leave [broker] url empty",
        )
    with claimed(config):  # nobody else runs there
        for folder in folders:
            if not folder.exists():
                continue
            if not purge:
                raise ConfigError(
                    f"{folder} exists already",
                    hint="--purge removes it, run.name=... storms another run",
                )
            shutil.rmtree(folder)
