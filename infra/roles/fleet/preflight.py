"""The quick part of `check`, before anything of a run exists.

It runs in a child process: what it imports (torch, transformers) would otherwise stay in the
memory of `up` as long as the run lasts.
"""

import json
import logging
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Mapping

from infra.roles.errors import ConfigError, DeadlinePassed
from infra.roles.prctl import die_with
from schemas.config import RunConfig

logger = logging.getLogger(__name__)

PATIENCE_S = 300.0
_LINE_S = 10.0


def preflight(config: RunConfig, roles: Mapping[str, str]) -> None:
    """Refuse a run that cannot work.

    Args:
        config: The run.
        roles: Role -> module offering `check`.

    Raises:
        ConfigError: Every fault that was found.
        DeadlinePassed: The check hangs.
    """
    reading, writing = os.pipe()
    parent = os.getpid()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _be_the_child(config, roles, parent, writing)
    os.close(writing)
    try:
        said = _read_all(reading, time.monotonic() + PATIENCE_S)
    finally:
        os.close(reading)
        os.kill(pid, signal.SIGKILL)  # it has said all it has to say, or hangs
        os.waitpid(pid, 0)
    if not said:
        raise ConfigError(
            "the check before the run broke off",
            hint="what it said is above; 'run.py check RECIPE' shows more",
        )
    faults = json.loads(said)
    if faults:
        raise ConfigError("\n".join(dict.fromkeys(faults)))


def _read_all(descriptor: int, deadline: float) -> bytes:
    """Until the other end is closed.

    Raises:
        DeadlinePassed: It is not, in time.
    """
    said, began = b"", time.monotonic()
    while (now := time.monotonic()) < deadline:
        if select.select([descriptor], [], [], min(_LINE_S, deadline - now))[0]:
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                return said
            said += chunk
        else:
            waited = time.monotonic() - began
            logger.info("waiting for the check before the run · %.0f s", waited)
    raise DeadlinePassed(
        f"the check before the run took more than {PATIENCE_S:.0f} s",
        hint="'run.py check RECIPE' shows what it waits for: a slow disk, a reward's imports?",
    )


def _be_the_child(config: RunConfig, roles: Mapping[str, str], parent: int, writing: int) -> None:
    """Never returns into the caller's code."""
    from infra.roles.command.check import quick_probes, try_all

    code = 1
    try:
        die_with(parent)()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        faults = [o.fault for o in try_all(quick_probes(config, roles)) if o.fault]
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(json.dumps(faults).encode())
        code = 0
    finally:
        if code:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(code)
