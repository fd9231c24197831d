"""`run.py up` as a child: the stormy run, and the calm one that it is compared with."""

import asyncio
import json
import logging
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from infra.roles.fleet.processes import start_child
from infra.roles.settings import as_json_tree
from infra.runs.folder import RunFolder
from infra.runs.metrics import read_metrics
from schemas.config import RunConfig

logger = logging.getLogger(__name__)

_POLL_S = 0.2
CALM = "-calm"


class UpProcess:
    """`run.py up`; its output goes to a file.

    Start it from the main thread: Linux ends it when the thread that forked it ends.
    """

    def __init__(
        self,
        entry: Path,
        recipe: Path,
        *arguments: str,
        log: Path,
        environment: Mapping[str, str],
    ) -> None:
        argv = [sys.executable, str(entry), "up", str(recipe), *arguments]
        self._process = start_child(argv, env=environment, log=log)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def leave(self) -> None:
        """SIGTERM: everybody hands over and leaves."""
        if self.exit_code is None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL; its children go with it."""
        if self.exit_code is None:
            self._process.kill()
        self._process.wait()

    async def ended(self, timeout_s: float) -> int | None:
        """Its exit code; None when it still runs after that long."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while self.exit_code is None:
            if asyncio.get_running_loop().time() >= deadline:
                return None
            await asyncio.sleep(_POLL_S)
        return self.exit_code


def write_recipe(config: RunConfig, path: Path) -> Path:
    """A resolved recipe that `up` reads."""
    path.write_text(json.dumps(as_json_tree(config), indent=2) + "\n", encoding="utf-8")
    return path


def calm_config(config: RunConfig) -> RunConfig:
    """The same run under another name."""
    return with_run(config, name=config.run.name + CALM)


def with_run(config: RunConfig, **changes: object) -> RunConfig:
    """The recipe with another `[run]` section."""
    return config.model_copy(update={"run": config.run.model_copy(update=changes)})


def is_finished(config: RunConfig) -> bool:
    """Whether the run folder holds this very run, brought to its end."""
    folder = RunFolder.of(config)
    try:
        found = json.loads(folder.config.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    ends: Sequence[object] = list(read_metrics(folder.metrics, "end"))
    return bool(found == as_json_tree(config) and ends)
