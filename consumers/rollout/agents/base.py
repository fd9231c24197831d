"""What an agent decides: the opening messages, and what follows each finished turn.

Everything else - tokens, budgets, cuts, tools - is the loop's. A custom agent subclasses `Agent`
and is named by its import path.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from consumers.rollout.parsers.base import ParsedTurn
from schemas.chat import ChatMessage, Speaker
from schemas.work import AgentPhase, RolloutTask


class Agent:
    """Decisions of one rollout; built anew wherever the rollout is taken up."""

    uses_tools: ClassVar[bool] = False
    """Whether the model is shown the task's tools and its turns are parsed for calls."""
    interaction: ClassVar[str | None] = None
    """Registered name or import path of who answers turns without calls."""

    def __init__(self, task: RolloutTask) -> None:
        self.task = task

    @classmethod
    def answered_by(cls) -> tuple[Speaker, ...]:
        """Whose messages follow its turns: what the chat template must be able to append."""
        return (Speaker.TOOL,) * cls.uses_tools + (Speaker.USER,) * bool(cls.interaction)

    def opening(self) -> Sequence[ChatMessage]:
        """The messages that the prompt is rendered from."""
        return self.task.messages

    def next_phase(self, turn: ParsedTurn) -> AgentPhase:
        """What follows a turn that the policy ended: tools, an answer, or the end."""
        if self.uses_tools and (turn.calls or turn.errors):
            return AgentPhase.PROCESSING_TOOLS
        return AgentPhase.INTERACTING if self.interaction else AgentPhase.TERMINATED

    def save(self) -> dict[str, Any]:
        """JSON of everything that `restore` needs."""
        return {}

    def restore(self, saved: dict[str, Any]) -> None:
        """Take up where `save` was called, perhaps on another worker."""
