"""The role processes of one run: what to start, with which words, and who runs now."""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from infra.observe.logs import alert_level
from infra.observe.relay import Relay
from infra.roles.broker_url import BROKER_VARIABLE
from infra.roles.context import TRAINER
from infra.roles.errors import RoleDied
from infra.roles.fleet.children import RoleProcess, exit_words
from infra.roles.fleet.processes import end_orphans
from infra.roles.fleet.run_folder import write_atomically
from infra.roles.heartbeats import BEFORE_VARIABLE
from infra.roles.lifecycle import WORKER_VARIABLE
from infra.roles.names import planned
from infra.runs.folder import RunFolder
from schemas.config import RunConfig


class Roles:
    """Starts the processes, and keeps `fleet.json` telling which of them run.

    Args:
        children: Planned, none started.
        folder: Of the run.
        relay: Follows what each logs.
        environment: Of every process.
        others: Ids of processes of ours that are no roles.
    """

    def __init__(
        self,
        children: Sequence[RoleProcess],
        folder: RunFolder,
        *,
        relay: Relay,
        environment: Mapping[str, str],
        others: Callable[[], Sequence[int]],
    ) -> None:
        self.children = list(children)
        self._folder = folder
        self._relay = relay
        self._environment = dict(environment)
        self._others = others
        self._pids: dict[str, int] = {}

    def start_all(self) -> None:
        """Start each.

        Raises:
            RoleDied: There is no room for one of them.
        """
        for child in self.children:
            try:
                self._start(child)
            except OSError as error:
                raise RoleDied(
                    f"{child.name} cannot be started: {error.strerror or error}",
                    hint="raise the limits on processes, open files or memory (ulimit -a)",
                ) from error
        self.note_running()

    def restart(self, child: RoleProcess) -> None:
        """End what its dead process left behind, then start it again.

        Raises:
            OSError: There is no room for another process.
        """
        ours = {*self._pids.values(), *self._others()}
        end_orphans(os.getpid(), mark=f"{WORKER_VARIABLE}={child.name}", spare=ours)
        before = exit_words(child.exit_code() or 0)
        said = next((line for line in reversed(child.last_lines()) if alert_level(line)), "")
        self._start(child, {BEFORE_VARIABLE: f"{before}: {said}" if said else before})

    def running(self) -> dict[str, int]:
        """Name -> process id of those that run."""
        alive = {child.name for child in self.children if child.exit_code() is None}
        return {name: pid for name, pid in self._pids.items() if name in alive}

    def note_running(self) -> None:
        """Write `fleet.json`."""
        write_atomically(self._folder.fleet, json.dumps(self.running()) + "\n")

    def _start(self, child: RoleProcess, further: Mapping[str, str] | None = None) -> None:
        child.start({**self._environment, WORKER_VARIABLE: child.name, **(further or {})})
        self._pids[child.name] = child.pid
        self._relay.follow(child.name, child.role, child.log)


def plan(
    config: RunConfig,
    folder: RunFolder,
    entry: Path,
    flags: Sequence[str],
    *,
    skip_step: int | None = None,
) -> list[RoleProcess]:
    """The processes to start: all read the resolved recipe in the run folder.

    A trainer that is started again goes on with what the one before left, whatever `flags` say;
    it may have died before it gave up `skip_step`, so each is told.
    """
    skip = () if skip_step is None else ("--skip-step", str(skip_step))
    logs = folder.latest_logs.resolve()
    return [
        RoleProcess(
            role,
            name,
            [sys.executable, str(entry), role, str(folder.config), "--name", name],
            log=logs / f"{role}-{number}.log",
            at_first=(*flags, *skip) if role == TRAINER else (),
            again=("--resume", *skip) if role == TRAINER else (),
        )
        for role, name, number in planned(config)
    ]


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
