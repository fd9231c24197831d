"""One row of a dataset, in whichever of the known shapes, becomes a prompt with reward data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import ValidationError

from infra.roles.errors import WarrenError
from schemas.chat import ChatMessage, Speaker
from schemas.work import RewardData

COLUMNS: dict[str, tuple[str, ...]] = {
    "messages": ("messages",),
    "prompt": ("prompt",),
    "ground_truth": ("reward_model.ground_truth", "ground_truth", "answer", "solution"),
    "data_source": ("data_source",),
    "extra_info": ("extra_info",),
    "tools": ("tools",),
}
"""Our name of a column -> where it is looked for, first found first; a dot goes into a struct."""


class DatasetError(WarrenError):
    """A row that cannot become a prompt; says file, line or row, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A prompt and what its reward functions are given."""

    messages: tuple[ChatMessage, ...]
    reward_data: RewardData
    tools: tuple[str, ...] | None = None
    """Tools of this row alone; None means those of the recipe."""


def parse_row(raw: object, columns: Mapping[str, str], *, where: str) -> Row:
    """Read a row of jsonl or parquet.

    Args:
        raw: The row as decoded: a mapping in every accepted shape.
        columns: The recipe's map, our column name -> the file's.
        where: File and line, for the message.

    Raises:
        DatasetError: The row has no prompt, or a part of it is malformed.
    """
    if not isinstance(raw, Mapping):
        raise DatasetError(f"{where}: the row is {_kind(raw)}, not an object with columns")
    row = _Columns(raw, columns, where)
    extra = row.find("extra_info")
    if extra is not None and not isinstance(extra, Mapping):
        raise DatasetError(f"{where}: extra_info is {_kind(extra)}, not an object")
    source = row.find("data_source")
    return Row(
        messages=_messages(row),
        reward_data=RewardData(
            data_source="" if source is None else str(source),
            ground_truth=_plain(row.find("ground_truth"), f"{where}: ground_truth"),
            extra_info=_plain(dict(extra or {}), f"{where}: extra_info"),
        ),
        tools=_tools(row),
    )


class _Columns:
    def __init__(self, raw: Mapping[str, Any], columns: Mapping[str, str], where: str) -> None:
        self.raw, self.columns, self.where = raw, columns, where

    def find(self, name: str) -> Any:
        """Value of our column, or None; a column that the recipe names must be there."""
        named = self.columns.get(name)
        for path in (named,) if named else COLUMNS[name]:
            value = _dig(self.raw, path)
            if value is not None:
                return value
        if named:
            raise DatasetError(
                f"{self.where}: column {named!r} (named for {name}) is missing or null; "
                f"the row has {_listed(self.raw)}"
            )
        return None


def _dig(raw: Mapping[str, Any], path: str) -> Any:
    if path in raw:
        return raw[path]
    value: Any = raw
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def _messages(row: _Columns) -> tuple[ChatMessage, ...]:
    if "prompt" in row.columns and "messages" not in row.columns:
        value = row.find("prompt")
    else:
        value = row.find("messages")
        value = row.find("prompt") if value is None else value
    if value is None:
        raise DatasetError(
            f"{row.where}: no prompt: the row has {_listed(row.raw)}, but neither `messages` nor "
            f"`prompt`",
            hint='name the column in the recipe: columns = { prompt = "<column>" }',
        )
    if isinstance(value, str):
        if not value:
            raise DatasetError(f"{row.where}: the prompt is empty")
        return (ChatMessage(role=Speaker.USER, content=value),)
    if not isinstance(value, Sequence) or isinstance(value, bytes):
        raise DatasetError(f"{row.where}: the prompt is {_kind(value)}, not text or messages")
    if not value:
        raise DatasetError(f"{row.where}: the prompt has no messages")
    messages = tuple(
        _message(item, f"{row.where}: message {number}") for number, item in enumerate(value)
    )
    if messages[-1].role is Speaker.ASSISTANT:
        raise DatasetError(
            f"{row.where}: the prompt ends with the assistant, so nothing is left to answer"
        )
    return messages


def _message(item: object, where: str) -> ChatMessage:
    if not isinstance(item, Mapping):
        raise DatasetError(f"{where} is {_kind(item)}, not an object with role and content")
    fields = {name: value for name, value in item.items() if value is not None}
    if isinstance(fields.get("content"), list):
        fields["content"] = "".join(_text_part(part, where) for part in fields["content"])
    fields["tool_calls"] = _calls(fields.get("tool_calls"), where)
    try:
        return ChatMessage.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise DatasetError(f"{where}: {name}: {first['msg']}") from error


def _calls(value: object, where: str) -> tuple[dict[str, Any], ...]:
    """Tool calls of an earlier turn; arguments may be an object, or its JSON as OpenAI has it."""
    if not value:
        return ()
    if not isinstance(value, Sequence) or not all(isinstance(call, Mapping) for call in value):
        raise DatasetError(f"{where}: tool_calls is no list of objects")
    calls = [dict(call) for call in value]
    for call in calls:
        function = call.get("function")
        if not isinstance(function, Mapping):
            raise DatasetError(f"{where}: a tool call's function is {_kind(function)}, no object")
        if isinstance(function.get("arguments"), Mapping):
            try:
                written = orjson.dumps(function["arguments"]).decode()
            except orjson.JSONEncodeError as error:
                raise DatasetError(f"{where}: a tool call cannot be JSON: {error}") from error
            call["function"] = {**function, "arguments": written}
    return tuple(calls)


def _text_part(part: object, where: str) -> str:
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, Mapping) else _kind(part)
    raise DatasetError(f"{where}: content holds {kind!r}: only text is supported")


def _tools(row: _Columns) -> tuple[str, ...] | None:
    value = row.find("tools")
    if value is None:
        return None
    if not isinstance(value, Sequence) or not all(isinstance(item, str) for item in value):
        raise DatasetError(f"{row.where}: tools must be a list of names or import paths")
    return tuple(value)


def _plain(value: Any, what: str) -> Any:
    try:
        return orjson.loads(orjson.dumps(value))
    except orjson.JSONEncodeError as error:
        raise DatasetError(f"{what} cannot be written as JSON: {error}") from error


def _kind(value: object) -> str:
    return "null" if value is None else type(value).__name__


def _listed(raw: Mapping[str, Any]) -> str:
    return "the columns " + ", ".join(sorted(str(name) for name in raw)) if raw else "no columns"
