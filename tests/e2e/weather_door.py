"""The front door, in a world in which disks fill up when the weather says so."""

import errno
import os
import sys
from pathlib import Path

import run
from infra.roles.command.cli import main
from infra.runs import failpoints
from infra.runs.failpoints import FailPoint
from tests.e2e.weather import weather


def _full(point: FailPoint) -> None:
    if point is FailPoint.WEIGHTS_WRITTEN and weather() == "full":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


if __name__ == "__main__":
    failpoints.listen(_full)
    sys.exit(main(sys.argv[1:], roles=run.ROLES, tools=run.TOOLS, entry=Path(__file__).resolve()))
