"""What a recipe may say: sections, keys, defaults and documentation, read off the models."""

import types
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from infra.observe.columns import trimmed
from schemas.config import RunConfig


def keys_at(location: Sequence[int | str]) -> dict[str, str]:
    """Key -> documentation of the section at a place in the recipe; empty where none is."""
    model: type[BaseModel] | None = RunConfig
    for part in location:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part) if model is not None else None
        model = _model_in(field.annotation) if field is not None else None
    if model is None:
        return {}
    return {name: field.description or "" for name, field in model.model_fields.items()}


def describe_config() -> str:
    """Every section with its keys: type, default, meaning. Ready to be shown."""
    return trimmed("\n".join(_section(RunConfig, ()))).strip()


def _section(model: type[BaseModel], path: tuple[str, ...]) -> Iterator[str]:
    nested: list[tuple[type[BaseModel], tuple[str, ...]]] = []
    for name, field in model.model_fields.items():
        inner = _model_in(field.annotation)
        if inner is not None:
            nested.append((inner, (*path, name)))
        if path:
            yield f"  {name:<20} {_default(field):<14} {_type(field.annotation)}"
            yield f"  {'':<20} {field.description or ''}"
    for inner, inner_path in nested:
        yield ""
        yield f"[{'.'.join(inner_path)}]  {(inner.__doc__ or '').strip()}"
        yield from _section(inner, inner_path)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "(required)"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    return str(list(value) if isinstance(value, tuple) else value)


def _type(annotation: Any) -> str:
    arguments = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return _type(arguments[0])
    if arguments and all(isinstance(argument, str) for argument in arguments):
        return " | ".join(f'"{argument}"' for argument in arguments)
    if _model_in(annotation) is not None:
        return "list of tables"
    if get_origin(annotation) is tuple:
        inner = [argument for argument in arguments if argument is not Ellipsis]
        return f"list of {_type(inner[0])}"
    if get_origin(annotation) is dict:
        return "table"
    return {"str": "text", "bool": "true | false", "int": "integer", "float": "number"}.get(
        getattr(annotation, "__name__", ""), str(annotation)
    )


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model that a field is, or is a list of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (tuple, list, Union, types.UnionType):
        for argument in get_args(annotation):
            found = _model_in(argument)
            if found is not None:
                return found
    return None
