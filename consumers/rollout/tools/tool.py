"""A typed plain function as a tool: what the model is shown, and arguments that are checked."""

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, get_type_hints, overload

import pydantic

from consumers.rollout.tools.docstring import parse_docstring
from consumers.rollout.tools.errors import ToolError
from infra.roles.errors import ConfigError
from schemas.chat import FunctionSpec, ToolSpec

MAX_ARGUMENT_CHARS = 100_000
"""Longer arguments are refused unread."""

CALL_ID = "call_id"
"""A parameter of this name is given the call's stable id and is not shown to the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the policy may call, and its limits."""

    function: Callable[..., Any]
    spec: ToolSpec
    arguments: type[pydantic.BaseModel] = field(repr=False)
    repeatable: bool = True
    """Whether a call that a cut abandoned may run again; others are waited for."""
    timeout_s: float | None = None
    """Limit of one call; None takes the worker's."""
    max_concurrency: int | None = None
    """Calls that one worker runs at a time; None is no limit."""
    pins: bool = False
    """Keeps something per rollout in this process that no snapshot can express."""
    wants_call_id: bool = False

    @property
    def name(self) -> str:
        """What the model calls it."""
        return self.spec.function.name

    @property
    def is_async(self) -> bool:
        """Whether the function is awaited; others run in a thread."""
        return inspect.iscoroutinefunction(self.function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The plain function."""
        return self.function(*args, **kwargs)

    def bind(self, arguments: str, call_id: str) -> dict[str, Any]:
        """Keyword arguments of a call from the JSON that the model wrote.

        Raises:
            ToolError: They are no JSON object, or do not fit the signature.
        """
        if len(arguments) > MAX_ARGUMENT_CHARS:
            raise ToolError(
                f"the arguments of {self.name} have {len(arguments)} characters, "
                f"at most {MAX_ARGUMENT_CHARS} are allowed"
            )
        try:
            decoded = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise ToolError(f"the arguments of {self.name} are not valid JSON: {error}") from error
        if not isinstance(decoded, dict):
            raise ToolError(f"the arguments of {self.name} must be a JSON object")
        try:
            checked = self.arguments.model_validate(decoded)
        except pydantic.ValidationError as error:
            raise ToolError(self._describe(error)) from error
        except RecursionError as error:
            raise ToolError(f"the arguments of {self.name} are nested too deeply") from error
        bound = {name: getattr(checked, name) for name in type(checked).model_fields}
        if self.wants_call_id:
            bound[CALL_ID] = call_id
        return bound

    def _describe(self, error: pydantic.ValidationError) -> str:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        shown = [
            f"{'.'.join(map(str, problem['loc']))[:100] or 'arguments'}: {problem['msg'][:200]}"
            for problem in problems[:5]
        ]
        expected = ", ".join(self.arguments.model_fields) or "none"
        return (
            f"wrong arguments for {self.name}: {'; '.join(shown)}. Expected arguments: {expected}"
        )


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    repeatable: bool = True,
    timeout_s: float | None = None,
    max_concurrency: int | None = None,
    pins: bool = False,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    repeatable: bool = True,
    timeout_s: float | None = None,
    max_concurrency: int | None = None,
    pins: bool = False,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a function with annotated parameters and a Google-style docstring.

    Raises:
        ConfigError: A parameter has no annotation, or is positional-only or variadic.
    """

    def wrap(plain: Callable[..., Any]) -> Tool:
        title = name or plain.__name__
        summary, described = parse_docstring(plain.__doc__)
        arguments = _arguments_model(plain, title, described)
        return Tool(
            function=plain,
            spec=ToolSpec(
                function=FunctionSpec(
                    name=title, description=summary, parameters=_parameters(arguments)
                )
            ),
            arguments=arguments,
            repeatable=repeatable,
            timeout_s=timeout_s,
            max_concurrency=max_concurrency,
            pins=pins,
            wants_call_id=CALL_ID in inspect.signature(plain).parameters,
        )

    return wrap if function is None else wrap(function)


def _arguments_model(
    function: Callable[..., Any], title: str, described: dict[str, str]
) -> type[pydantic.BaseModel]:
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == CALL_ID:
            continue
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(
                f"tool {title}: parameter {parameter.name!r} is {parameter.kind.description}",
                hint="tools take named parameters only",
            )
        if parameter.name not in hints:
            raise ConfigError(
                f"tool {title}: parameter {parameter.name!r} has no type",
                hint="annotate it; the model is shown the type",
            )
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (
            hints[parameter.name],
            pydantic.Field(default, description=described.get(parameter.name)),
        )
    return pydantic.create_model(
        f"{title}_arguments",
        __config__=pydantic.ConfigDict(extra="forbid", protected_namespaces=()),
        **fields,
    )


def _parameters(arguments: type[pydantic.BaseModel]) -> dict[str, Any]:
    """The JSON Schema without the titles that pydantic invents."""
    schema = arguments.model_json_schema()
    schema.pop("additionalProperties", None)
    schema.setdefault("properties", {})
    untitled = _without_titles(schema)
    assert isinstance(untitled, dict)
    return untitled


def _without_titles(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: (
            {name: _without_titles(value) for name, value in inner.items()}
            if key in ("properties", "$defs")
            else _without_titles(inner)
        )
        for key, inner in schema.items()
        if key != "title"
    }
