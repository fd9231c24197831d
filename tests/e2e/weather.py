"""A tool and a reward whose mood a file decides, so that a test can stage faults in a live run.

calm     all well
stuck    calls of the tool do not return while it is so
slow     a score takes three seconds
equal    every reward is the same
poison   whoever takes up one certain rollout dies, now and whenever it comes again
full     the trainer's disk takes no weights (see `weather_door`)
mute     the engine of rollout-1 gives no token (there as well)
"""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from consumers.rollout.agents.tool import ToolAgent
from schemas.chat import ChatMessage

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
    return "045"


class Agent(ToolAgent):
    """The tool agent."""

    def opening(self) -> Sequence[ChatMessage]:
        """As always, but for the victim."""
        if weather() == "poison" and self.task.rollout_id == _victim(self.task.rollout_id):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().opening()


def score(rollout: Any) -> float:
    """0, 1, 0, 1, ... by member, unless it is otherwise."""
    now = weather()
    if now == "slow":
        time.sleep(SLOW_S)
    return 0.0 if now == "equal" else float(int(rollout.rollout_id.rpartition(".")[2]) % 2)


def _victim(name: str) -> str:
    """The one that was first."""
    path = Path(os.environ[VARIABLE] + ".victim")
    try:
        with path.open("x") as file:
            file.write(name)
    except FileExistsError:
        return path.read_text()
    return name
