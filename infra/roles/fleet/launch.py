"""`up`: a broker, a run folder and every role, until the trainer is done."""

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from infra.observe.banner import banner
from infra.observe.harmless import harmless
from infra.observe.logs import set_up_logging
from infra.observe.relay import Relay
from infra.observe.resources import ResourceSampler
from infra.observe.summary import show_summary, write_summary
from infra.roles.context import TRAINER
from infra.roles.errors import ExitCode, WarrenError
from infra.roles.fleet.children import RoleProcess, exit_words
from infra.roles.fleet.interrupts import Interrupts
from infra.roles.fleet.preflight import preflight
from infra.roles.fleet.private_broker import RunBroker, await_configured, broker_for
from infra.roles.fleet.processes import descendants, end_all
from infra.roles.fleet.roles import Roles, child_environment, plan
from infra.roles.fleet.run_folder import claimed, prepare_folder
from infra.roles.fleet.supervise import Hooks, Patience, Supervisor
from infra.roles.lifecycle import report
from infra.roles.prctl import adopt_orphans
from infra.runs.folder import RunFolder
from infra.runs.metrics import read_metrics
from schemas.config import RunConfig

logger = logging.getLogger(__name__)

_FINISH_S = 5.0
_LEAVE_MARGIN_S = 30.0


def up(
    config: RunConfig,
    *,
    roles: Mapping[str, str],
    entry: Path,
    resume: bool = False,
    purge: bool = False,
    skip_step: int | None = None,
) -> int:
    """Run everything on this machine.

    Args:
        config: The run.
        roles: Role -> module offering `check`.
        entry: The front door, which starts single roles.
        resume: Go on with what the run folder holds.
        purge: Begin afresh where an earlier run of this name lies.
        skip_step: A step that the trainer is to give up.

    Returns:
        The exit code: 0; 130 when interrupted, or when the trainer was told to leave; else that
        of the role that ended the run if it tells something (2, 3, 5, 6, 7, 8), and 4 if not.

    Raises:
        ConfigError: The recipe cannot work, or the run folder cannot be used.
        BrokerUnreachable: No broker can be had.
    """
    set_up_logging("up")
    with Interrupts() as interrupts:
        await_configured(config)
        preflight(config, roles)
        adopt_orphans()
        with claimed(config):
            return _run(config, entry, interrupts, resume=resume, purge=purge, skip_step=skip_step)


def _run(
    config: RunConfig,
    entry: Path,
    interrupts: Interrupts,
    *,
    resume: bool,
    purge: bool,
    skip_step: int | None,
) -> ExitCode:
    flags = [name for name, on in (("--resume", resume), ("--purge", purge)) if on]
    try:
        folder = prepare_folder(config, resume=resume, purge=purge)
        children = plan(config, folder, entry, flags, skip_step=skip_step)
        with broker_for(config, folder) as broker:
            code = _run_roles(config, folder, broker, children, interrupts)
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
    children: list[RoleProcess],
    interrupts: Interrupts,
) -> ExitCode:
    sys.stdout.write(banner(config, folder, url=broker.url, private=broker.private))
    sys.stdout.flush()
    relay = Relay(everything_of=TRAINER)
    roles = Roles(
        children,
        folder,
        relay=relay,
        environment=child_environment(broker.url),
        others=lambda: broker.pids,
    )
    sampler = ResourceSampler(folder.resources, roots={}, own=os.getpid())

    def each_tick() -> None:
        broker.look_after()
        relay.pump()
        sampler.tick()

    def changed() -> None:
        roles.note_running()
        sampler.roots = roles.running() | {
            f"broker-{number}": pid for number, pid in enumerate(broker.pids, 1)
        }

    interrupts.armed = True
    try:
        roles.start_all()
        changed()
        supervisor = Supervisor(
            roles.children,
            supervise=config.supervise,
            interrupts=interrupts,
            patience=Patience(finish_s=_FINISH_S, leave_s=_LEAVE_MARGIN_S + config.rollout.grace),
            hooks=Hooks(
                each_tick=each_tick,
                restart=roles.restart,
                changed=changed,
                is_over=lambda: _is_over(config, folder),
            ),
        )
        code = supervisor.run()
        sampler.tick(force=True)
    finally:
        end_all(os.getpid(), spare=_broker_processes(broker))
        folder.fleet.unlink(missing_ok=True)
        relay.pump(last=True)
    if supervisor.failure is not None:
        _name_failure(*supervisor.failure)
    return code


def _is_over(config: RunConfig, folder: RunFolder) -> bool:
    """Whether the trainer's last line says that all steps are done."""
    step = -1
    for line in read_metrics(folder.metrics, "end"):
        step = number if isinstance(number := line.get("step"), int) else -1
    return step >= config.run.steps


def _broker_processes(broker: RunBroker) -> set[int]:
    return {*broker.pids, *(pid for root in broker.pids for pid in descendants(root))}


def _name_failure(child: RoleProcess, code: int) -> None:
    lines = "".join(f"    {harmless(line)}\n" for line in child.last_lines())
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
