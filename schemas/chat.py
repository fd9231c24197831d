"""Chat messages, tool calls and tool specifications in the OpenAI shape."""

from enum import StrEnum
from typing import Any, Literal

from schemas.base import Frozen


class Speaker(StrEnum):
    """Who says a message."""

    SYSTEM = "system"
    """Instructions before the conversation."""
    USER = "user"
    """The prompt, or an interaction's reply."""
    ASSISTANT = "assistant"
    """The policy."""
    TOOL = "tool"
    """A tool's result."""


class FunctionCall(Frozen):
    """What is called, with which arguments."""

    name: str
    arguments: str
    """A JSON object as text, as the model wrote it."""


class ToolCall(Frozen):
    """One call that the model made."""

    id: str
    """Stable across attempts: `<rollout_id>:<turn>:<position>`."""
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(Frozen):
    """One message of a conversation."""

    role: Speaker
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None


class FunctionSpec(Frozen):
    """Name, purpose and JSON Schema of a tool's parameters."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}


class ToolSpec(Frozen):
    """A tool as the chat template shows it to the model."""

    type: Literal["function"] = "function"
    function: FunctionSpec
