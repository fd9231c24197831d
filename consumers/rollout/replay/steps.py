"""What happened to a rollout, step by step, and how two rollouts differ: plain data."""

from dataclasses import dataclass
from typing import Literal

from schemas.work import AgentPhase

Event = Literal["taken", "appended", "sampled", "tool", "reply", "cut", "ended"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that happened in the agent loop."""

    event: Event
    phase: AgentPhase
    """Of the state machine, when it happened."""
    turn: int
    """Complete assistant turns so far."""
    start: int
    stop: int
    """Tokens of the sequence before and after."""
    worker: str
    version: int | None = None
    """Policy version, where something was sampled."""
    text: str = ""
    """What was said; hostile."""
    detail: str = ""
    """What else there is to say; hostile too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first thing in which a replay is not its record."""

    where: str
    """As in `token 14 (turn 2, tool)` or `messages[3].content`."""
    recorded: str
    """What is there; hostile, as the next."""
    replayed: str


class Differs(Exception):
    """The replay has left its record; there is no use in going on."""

    def __init__(self, difference: Difference) -> None:
        super().__init__(difference.where)
        self.difference = difference
