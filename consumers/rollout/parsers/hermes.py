"""`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as Hermes and Qwen write it."""

import json
from collections.abc import Sequence
from typing import Any

from consumers.rollout.parsers.base import ParsedTurn
from infra.roles.registry import register
from infra.text.renderer import Renderer
from schemas.base import encodable
from schemas.chat import FunctionCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FORM = '<tool_call>{"name": "...", "arguments": {...}}</tool_call>'

_decoder = json.JSONDecoder()


@register("parser", "hermes")
class HermesParser:
    """Any number of calls, anywhere in the turn; a malformed one is answered with its error."""

    def stop_token_ids(self, renderer: Renderer) -> frozenset[int]:
        """None: the model may write several calls before it ends its turn."""
        return frozenset()

    def parse(self, text: str, token_ids: Sequence[int]) -> ParsedTurn:
        """Every call of the whole turn, in order."""
        content: list[str] = []
        calls: list[FunctionCall] = []
        errors: list[str] = []
        position = 0
        while (start := text.find(OPEN, position)) >= 0:
            content.append(text[position:start])
            call, position = _call(text, start + len(OPEN))
            if isinstance(call, FunctionCall):
                calls.append(call)
            else:
                errors.append(f"Error: this tool call was not run: {call}. Write {FORM}")
        content.append(text[position:])
        return ParsedTurn(
            content="".join(content).strip(), calls=tuple(calls), errors=tuple(errors)
        )


def _call(text: str, start: int) -> tuple[FunctionCall | str, int]:
    """The call that begins at `start`, or what is wrong with it; and where the text goes on."""
    while start < len(text) and text[start].isspace():
        start += 1
    close = text.find(CLOSE, start)
    after_close = close + len(CLOSE) if close >= 0 else len(text)
    try:
        value, end = _decoder.raw_decode(text, start)
    except RecursionError:
        return "its JSON is nested too deeply", after_close
    except ValueError as error:
        if close < 0:
            return f"{CLOSE} is missing", after_close
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "a number is too long"
        return f"its JSON is malformed ({reason})", after_close
    # The JSON tells where the call ends: a string in it may hold the closing tag.
    rest = text[end : end + 100].lstrip()
    if not rest.startswith(CLOSE):
        if close < 0:
            return f"{CLOSE} is missing", after_close
        return f"something other than {CLOSE} follows its JSON", max(after_close, end)
    return _function_call(value), text.index(CLOSE, end) + len(CLOSE)


def _function_call(value: Any) -> FunctionCall | str:
    if not isinstance(value, dict):
        return "its JSON is not an object"
    name, arguments = value.get("name"), value.get("arguments", {})
    if not isinstance(name, str) or not name:
        return 'it has no "name"'
    if isinstance(arguments, str):
        written = arguments
    elif isinstance(arguments, dict):
        try:
            written = json.dumps(arguments, ensure_ascii=False)
        except RecursionError:
            return "its arguments are nested too deeply"
    else:
        return 'its "arguments" are not an object'
    return FunctionCall(name=encodable(name[:200]), arguments=encodable(written))
