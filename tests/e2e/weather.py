"""A tool and a reward whose mood a file decides, so that a test can stage faults in a live run.

calm     all well
stuck    calls of the tool do not return while it is so
slow     a score takes three seconds
equal    every reward is the same
poison   the first call that the tool gets kills its worker, now and whenever it comes again
full     the trainer's disk takes no weights (see `weather_door`)
"""

import os
import signal
import time
from pathlib import Path
from typing import Any

VARIABLE = "WARREN_TEST_WEATHER"
SLOW_S = 3.0


def weather() -> str:
    """What it is now."""
    try:
        return Path(os.environ[VARIABLE]).read_text()
    except OSError:
        return "calm"


def add(expression: str) -> str:
    """Add, or rather look something up.

    Args:
        expression: Anything.
    """
    while weather() == "stuck":
        time.sleep(0.1)
    if weather() == "poison" and expression == _victim(expression):
        os.kill(os.getpid(), signal.SIGKILL)
    return "045"


def score(rollout: Any) -> float:
    """0, 1, 0, 1, ... by member, unless it is otherwise."""
    now = weather()
    if now == "slow":
        time.sleep(SLOW_S)
    return 0.0 if now == "equal" else float(int(rollout.rollout_id.rpartition(".")[2]) % 2)


def _victim(expression: str) -> str:
    """The one that was first."""
    path = Path(os.environ[VARIABLE] + ".victim")
    try:
        with path.open("x") as file:
            file.write(expression)
    except FileExistsError:
        return path.read_text()
    return expression
