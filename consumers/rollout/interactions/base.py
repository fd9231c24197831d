"""Who answers a turn that calls no tool: a simulated user, an environment, a checker."""

from collections.abc import Sequence
from typing import Any, ClassVar

from schemas.chat import ChatMessage
from schemas.work import RolloutTask


class Interaction:
    """One conversation's partner; built anew wherever the rollout is taken up.

    A subclass is named by the `interaction` attribute of an agent.
    """

    repeatable: ClassVar[bool] = True
    """Whether a reply that a cut abandoned may be asked for again, from the state saved before."""
    timeout_s: ClassVar[float] = 60.0
    """Limit of one reply; a rollout whose partner passes it fails."""

    def __init__(self, task: RolloutTask) -> None:
        self.task = task

    async def reply(self, messages: Sequence[ChatMessage]) -> str | None:
        """Answer the conversation so far, or end it with None."""
        raise NotImplementedError

    def save(self) -> dict[str, Any]:
        """JSON of everything that `restore` needs."""
        return {}

    def restore(self, saved: dict[str, Any]) -> None:
        """Take up where `save` was called, perhaps on another worker."""
