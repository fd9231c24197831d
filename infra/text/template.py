"""A chat template as text: whole prompts, and what it appends after a finished assistant turn."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import jinja2

from infra.roles.errors import ConfigError
from infra.text.errors import TemplateRefused
from schemas.chat import ChatMessage, FunctionCall, Speaker, ToolCall, ToolSpec

ANSWER = "Qz7"
"""Stands for what the policy wrote in a synthetic context; appears in no template."""

QUESTION = "x"

Render = Callable[..., str]
"""`apply_chat_template` of a tokenizer, returning text."""


class ChatTemplate:
    """Renders messages through the model's own template."""

    def __init__(self, render: Render) -> None:
        self._render = render

    def render(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec] = (),
        *,
        open_turn: bool = True,
    ) -> str:
        """The whole conversation, with the opening of the next assistant turn if asked.

        Raises:
            TemplateRefused: The template raised.
        """
        try:
            return self._render(
                [_as_dict(message) for message in messages],
                tools=[tool.model_dump(mode="json") for tool in tools] or None,
                add_generation_prompt=open_turn,
                tokenize=False,
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError) as error:
            roles = ", ".join(message.role for message in messages)
            raise TemplateRefused(f"the chat template refuses [{roles}]: {error}") from error

    def continuation(self, new_messages: Sequence[ChatMessage]) -> str:
        """What follows an assistant's content: the end of its turn, the messages, a new opening.

        It is what comes after the content in a synthetic context, so it does not depend on the
        conversation; `check` proves that this is allowed.

        Raises:
            TemplateRefused: The template raised.
        """
        context = (_user(QUESTION), _assistant(ANSWER))
        try:
            return _after(ANSWER, self.render((*context, *new_messages)))
        except TemplateRefused:
            calling = (_user(QUESTION), _calling(new_messages))
            before = self.render(calling, open_turn=False)
            whole = self.render((*calling, *new_messages))
            if not whole.startswith(before):
                raise
            turn_end = _after(ANSWER, self.render(context, open_turn=False))
            return turn_end + whole.removeprefix(before)

    def check(self, role: Speaker) -> str:
        """Prove that messages of `role` after an assistant turn only append.

        Returns:
            A rendered conversation of three assistant turns, whose tokens can be compared.

        Raises:
            ConfigError: They do not, with the place where the renderings differ.
        """
        history: list[ChatMessage] = [_user(QUESTION)]
        appended = self.render(history)
        for number in range(3):
            answer = f"{ANSWER}{number}"
            new = replies(role, number)
            plain = [*history, _assistant(answer), *new]
            try:
                whole = self.render(plain)
            except TemplateRefused:
                # A template that wants to see the calls; it shows them in its own words.
                plain = [*history, _calling(new), *new]
                appended = self.render(plain[: -len(new)], open_turn=False)
                turn_end = self.render((_user(QUESTION), _assistant(ANSWER)), open_turn=False)
                appended += self.continuation(new).removeprefix(_after(ANSWER, turn_end))
                whole = self.render(plain)
            else:
                appended += answer + self.continuation(new)
            if appended != whole:
                raise ConfigError(
                    f"the chat template is not append-only for {role} messages: "
                    + _difference(appended, whole),
                    hint="use a template that renders earlier turns the same way for ever, "
                    "or the single_turn agent",
                )
            history = plain
        return appended


def replies(role: Speaker, number: int) -> list[ChatMessage]:
    """Messages like those that a turn is answered with: two results, or one user message."""
    if role is not Speaker.TOOL:
        return [ChatMessage(role=role, content=f"{number}")]
    return [
        ChatMessage(role=role, content=f"{number}{k}", tool_call_id=f"call{k}0000", name="f")
        for k in range(2)
    ]


def _user(text: str) -> ChatMessage:
    return ChatMessage(role=Speaker.USER, content=text)


def _assistant(text: str) -> ChatMessage:
    return ChatMessage(role=Speaker.ASSISTANT, content=text)


def _calling(answers: Sequence[ChatMessage]) -> ChatMessage:
    calls = tuple(
        ToolCall(
            id=answer.tool_call_id or "call00000",
            function=FunctionCall(name=answer.name or "f", arguments="{}"),
        )
        for answer in answers
    )
    return ChatMessage(role=Speaker.ASSISTANT, tool_calls=calls)


def _after(mark: str, text: str) -> str:
    _, found, rest = text.partition(mark)
    if not found:
        raise TemplateRefused("the chat template does not show the assistant's content")
    return rest


def _difference(appended: str, whole: str) -> str:
    pairs = zip(appended, whole, strict=False)
    at = next(
        (k for k, (a, b) in enumerate(pairs) if a != b),
        min(len(appended), len(whole)),
    )
    start = max(0, at - 20)
    return (
        f"turn by turn it gives {appended[start : at + 20]!r} "
        f"where the whole conversation gives {whole[start : at + 20]!r}"
    )


def _as_dict(message: ChatMessage) -> dict[str, Any]:
    shown: dict[str, Any] = {"role": str(message.role), "content": message.content}
    if message.tool_calls:
        shown["tool_calls"] = [
            {
                "id": call.id,
                "type": call.type,
                "function": {
                    "name": call.function.name,
                    "arguments": _arguments(call.function.arguments),
                },
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        shown["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        shown["name"] = message.name
    return shown


def _arguments(text: str) -> Any:
    """Templates write the arguments as JSON themselves; text that is none stays as it is."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
