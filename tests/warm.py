"""Roles as processes of their own, forked from one that has everything imported.

Only the imports are shared: each loads the model, connects and dies as any other. A start costs a
fork instead of the six seconds of a processor that torch and its kind take.
"""

import functools
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from infra.roles.prctl import die_with
from infra.runs import failpoints
from schemas.config import RunConfig
from tests.chaos.zygote import EARLY

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload([*EARLY, "consumers.rollout.worker", "tests.warm"])


@functools.cache
def warm_up() -> None:
    """Return when all is imported; later calls do so at once."""
    process = _forks.Process(target=int)
    process.start()
    process.join()


class Child:
    """Such a process; understands what a `Popen` does.

    Args:
        call: Gives its exit code.
        words: For `call`.
        log: File for all that it says.
        env: Variables that it has beside ours.
    """

    def __init__(
        self, call: Callable[..., int], *words: Any, log: Path, env: Mapping[str, str]
    ) -> None:
        arguments = (call, words, str(log), {**os.environ, **env})
        self._process = _forks.Process(target=_live, args=arguments, daemon=True)
        self._process.start()

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Until its end; raises `TimeoutExpired`."""
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("a role", timeout or 0.0)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Nothing happens once it has ended."""
        if self.poll() is None and self._process.pid is not None:
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)


def be_trainer(recipe: str, worker: str, flags: Mapping[str, bool | int]) -> int:
    """A trainer, to its end."""
    from consumers.trainer.worker import run

    return run(_config(recipe), worker=worker, **flags)


def be_rollout_worker(recipe: str, worker: str) -> int:
    """A rollout worker, to its end."""
    from consumers.rollout.worker import run

    return run(_config(recipe), worker=worker)


def _config(recipe: str) -> RunConfig:
    return RunConfig.model_validate_json(Path(recipe).read_text())


def _live(call: Callable[..., int], words: tuple[Any, ...], log: str, env: dict[str, str]) -> None:
    import torch

    die_with(os.getppid())()
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ.clear()
    os.environ.update(env)
    torch.set_num_threads(1)
    if place := env.get(failpoints.VARIABLE):
        failpoints.listen(failpoints.Killer.parse(place))
    sys.exit(call(*words))
