"""`up`: a broker, a run folder and every role, until the trainer is done."""

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from infra.observe.banner import banner
from infra.observe.logs import set_up_logging
from infra.observe.relay import Relay
from infra.observe.resources import ResourceSampler
from infra.observe.summary import show_summary, write_summary
from infra.roles.broker_url import BROKER_VARIABLE
from infra.roles.context import TRAINER
from infra.roles.errors import ExitCode, WarrenError
from infra.roles.fleet.children import RoleProcess, exit_words
from infra.roles.fleet.interrupts import Interrupts
from infra.roles.fleet.private_broker import RunBroker, await_configured, broker_for
from infra.roles.fleet.processes import descendants, end_all
from infra.roles.fleet.run_folder import prepare_folder
from infra.roles.fleet.supervise import Patience, Supervisor
from infra.roles.lifecycle import report
from infra.roles.prctl import adopt_orphans
from infra.runs.folder import RunFolder
from schemas.config import RunConfig

logger = logging.getLogger(__name__)

_FINISH_S = 30.0
_LEAVE_MARGIN_S = 30.0


def up(config: RunConfig, *, entry: Path, resume: bool = False, purge: bool = False) -> int:
    """Run everything on this machine.

    Args:
        config: The run.
        entry: The front door, which starts single roles.
        resume: Go on with what the run folder holds.
        purge: Begin afresh where an earlier run of this name lies.

    Returns:
        The exit code: 0, 4 when a role died, 130 when interrupted.

    Raises:
        ConfigError: The run folder cannot be used.
        BrokerUnreachable: No broker can be had.
    """
    set_up_logging("up")
    await_configured(config)
    folder = prepare_folder(config, resume=resume, purge=purge)
    adopt_orphans()
    with Interrupts() as interrupts:
        try:
            with broker_for(config, folder) as broker:
                flags = [name for name, on in (("--resume", resume), ("--purge", purge)) if on]
                code = _run_roles(config, folder, broker, entry, flags, interrupts)
                _conclude(folder, code)
        except KeyboardInterrupt:
            code = ExitCode.INTERRUPTED
        finally:
            end_all(os.getpid())
    return code


def _run_roles(
    config: RunConfig,
    folder: RunFolder,
    broker: RunBroker,
    entry: Path,
    flags: list[str],
    interrupts: Interrupts,
) -> ExitCode:
    sys.stdout.write(banner(config, folder, url=broker.url, private=broker.private))
    sys.stdout.flush()
    children = plan(config, folder, entry, flags)
    relay = Relay(everything_of=TRAINER)
    environment = child_environment(broker.url)
    interrupts.armed = True
    try:
        for child in children:
            relay.follow(child.name, child.role, child.log)
            child.start(environment)
        roots = {child.name: child.pid for child in children}
        roots |= {f"broker-{number}": pid for number, pid in enumerate(broker.pids, 1)}
        sampler = ResourceSampler(folder.root / "resources.jsonl", roots=roots, own=os.getpid())

        def each_tick() -> None:
            broker.look_after()
            relay.pump()
            sampler.tick()

        patience = Patience(
            finish_s=_FINISH_S + config.rollout.grace,
            leave_s=_LEAVE_MARGIN_S + config.rollout.grace,
        )
        supervisor = Supervisor(
            children, interrupts=interrupts, patience=patience, each_tick=each_tick
        )
        code = supervisor.run()
        sampler.tick(force=True)
    finally:
        end_all(os.getpid(), spare=_broker_processes(broker))
        relay.pump(last=True)
    if supervisor.failure is not None:
        _name_failure(*supervisor.failure)
    return code


def plan(config: RunConfig, folder: RunFolder, entry: Path, flags: list[str]) -> list[RoleProcess]:
    """The processes to start: all read the resolved recipe in the run folder."""
    counts = {
        "trainer": 1,
        "producer": 1,
        "rollout": config.rollout.workers,
        "reward": config.reward.workers,
    }
    planned: list[RoleProcess] = []
    for role, count in counts.items():
        for number in range(1, count + 1):
            name = role if role == TRAINER else f"{role}-{number}"
            argv = [sys.executable, str(entry), role, str(folder.config), "--name", name]
            argv += flags if role == TRAINER else []
            log = folder.logs / f"{role}-{number}.log"
            planned.append(RoleProcess(role, name, argv, log=log))
    return planned


def child_environment(url: str, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Ours, with the broker (never in argv, where everybody could read it), one thread each, and
    no progress bars in the logs."""
    return {
        "TQDM_DISABLE": "1",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **base,
        "PYTHONUNBUFFERED": "1",
        BROKER_VARIABLE: url,
    }


def _broker_processes(broker: RunBroker) -> set[int]:
    return {*broker.pids, *(pid for root in broker.pids for pid in descendants(root))}


def _name_failure(child: RoleProcess, code: int) -> None:
    lines = "".join(f"    {line}\n" for line in child.last_lines())
    sys.stdout.write(f"\n{child.name} died: {exit_words(code)}. The end of {child.log}:\n{lines}\n")
    sys.stdout.flush()


def _conclude(folder: RunFolder, code: ExitCode) -> None:
    """Write and show what the run came to, as far as it came to anything."""
    try:
        summary = write_summary(folder)
    except (OSError, ValueError, KeyError, WarrenError) as error:
        report(error)
        return
    if code is ExitCode.DONE or summary["steps"]:
        sys.stdout.write(show_summary(summary))
    sys.stdout.write(f"run folder: {folder.root}\n")
    sys.stdout.flush()
