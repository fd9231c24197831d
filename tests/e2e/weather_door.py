"""The front door of a world in which disks fill up and an engine hangs if the weather says so."""

import errno
import os
import sys
from pathlib import Path
from typing import Any

import run
from consumers.rollout.engines.simulated.engine import SimulatedEngine
from infra.roles.command.cli import main
from infra.runs import failpoints
from infra.runs.failpoints import FailPoint
from tests.e2e.weather import weather


def _full(point: FailPoint) -> None:
    if point is FailPoint.WEIGHTS_WRITTEN and weather() == "full":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _hang_when_mute() -> None:
    advance = SimulatedEngine._advance

    def hang(self: SimulatedEngine, sequence: Any) -> None:
        if weather() != "mute":
            advance(self, sequence)

    SimulatedEngine._advance = hang  # type: ignore[method-assign]


if __name__ == "__main__":
    failpoints.listen(_full)
    if "rollout-1" in sys.argv:
        _hang_when_mute()
    sys.exit(main(sys.argv[1:], roles=run.ROLES, tools=run.TOOLS, entry=Path(__file__).resolve()))
