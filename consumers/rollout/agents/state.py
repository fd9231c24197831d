"""One rollout being worked on, and what can cut it."""

import asyncio
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from consumers.rollout.agents.base import Agent
from consumers.rollout.interactions.base import Interaction
from infra.roles.errors import WarrenError
from schemas.chat import ChatMessage, ToolCall
from schemas.work import (
    AgentPhase,
    FailureKind,
    Interruption,
    RolloutStatus,
    RolloutTask,
    ToolResult,
    Turn,
)


class CutReason(StrEnum):
    """Why a rollout is cut."""

    SYNC = "sync"
    """New weights arrived."""
    LEAVE = "leave"
    """The worker goes."""
    INTERVAL = "interval"
    """The snapshot interval passed."""
    STALL = "stall"
    """It does not move any more."""


class RolloutFailed(WarrenError):
    """This attempt at a rollout failed; the worker is well.

    It is tried again a few times, then it becomes a `Failure` of this kind.

    Attributes:
        kind: Whose fault it is.
        final: Trying again cannot help.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        kind: FailureKind = FailureKind.DATA,
        final: bool = False,
    ) -> None:
        super().__init__(message, hint=hint)
        self.kind = kind
        self.final = final


@dataclass(slots=True, kw_only=True, eq=False)
class RolloutState:
    """Everything known of one rollout; only the agent loop writes it.

    The four per-token lists grow together and are never edited.
    """

    task: RolloutTask
    agent: Agent
    interaction: Interaction | None = None
    phase: AgentPhase = AgentPhase.PENDING
    token_ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    num_prompt_tokens: int = 0
    turn_start: int = 0
    """Where the unfinished assistant turn begins; `len(token_ids)` when there is none."""
    num_turns: int = 0
    """Complete assistant turns."""
    turns: list[Turn] = field(default_factory=list)
    messages: list[ChatMessage] = field(default_factory=list)
    tool_results: list[ToolResult] = field(default_factory=list)
    """Of turns before the last one."""
    calls: list[ToolCall] = field(default_factory=list)
    """Of the last turn, in order, while they are processed."""
    results: dict[str, ToolResult] = field(default_factory=dict)
    """Of the last turn's calls that are done, by call id."""
    interaction_saved: dict[str, Any] = field(default_factory=dict)
    """State of the interaction before a reply that is not there yet."""
    status: RolloutStatus = RolloutStatus.COMPLETED
    finish_reason: str = ""
    interruptions: list[Interruption] = field(default_factory=list)
    num_prefilled: int = 0
    num_cached: int = 0
    num_reprefilled: int = 0
    num_before_cut: int = 0
    """Tokens that were computed when it was cut; the next request finds them cached, or again."""
    num_resumed_elsewhere: int = 0
    generating_s: float = 0.0
    tools_s: float = 0.0
    waiting_s: float = 0.0
    pinned: bool = False
    """Holds a resource that no snapshot can express: never handed over, restarted on `leave`."""
    request_id: str | None = None
    """Of the engine request that is running now."""
    num_new_tokens: int = 0
    """Sampled since this worker took it up."""
    num_new_turns: int = 0
    """Assistant turns completed since this worker took it up."""
    cut_reason: CutReason | None = None
    """An accepted cut; `run` returns soon."""
    wait: asyncio.Timeout | None = None
    """A wait that a cut may end."""
    answer_limit_s: float = 0.0
    """Longest that the tools or the partner it waits for now may take."""

    @property
    def rollout_id(self) -> str:
        """The task's."""
        return self.task.rollout_id

    @property
    def oldest_version(self) -> int | None:
        """Version of the oldest sampled token, or None when nothing was sampled."""
        return next((version for version in self.versions if version >= 0), None)

    @property
    def newest_version(self) -> int | None:
        """Version of the newest sampled token, or None when nothing was sampled."""
        return next((version for version in reversed(self.versions) if version >= 0), None)

    @property
    def num_response_tokens(self) -> int:
        """Everything after the prompt, tool and user tokens included."""
        return len(self.token_ids) - self.num_prompt_tokens

    def interruptible(self, reason: CutReason) -> bool:
        """Whether `AgentLoop.cut` would cut it now.

        A sync cuts only what is in the engine: whatever waits for a tool, a user or admission
        meets the new weights at its next request.
        """
        if self.phase is AgentPhase.TERMINATED:
            return False
        if reason is CutReason.SYNC:
            return self.request_id is not None and not self.pinned
        return reason in (CutReason.LEAVE, CutReason.STALL) or not self.pinned
