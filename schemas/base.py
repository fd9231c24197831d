"""The two base classes of all that is written to a queue or a file, its numbers and its text."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

MAX_COUNT = 2**48
"""No count, version or position is larger: sums of many still fit 64 bits, and float64 is exact."""

MAX_DEPTH = 64
"""Of nested lists and tables in free-form data: what is read must be writable again."""

Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]

Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]
"""Any integer that JSON and AMQP carry."""


def encodable(text: str) -> str:
    """Text that a message can carry: lone surrogates, as JSON escapes can spell, become `?`."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _shallow(value: Any) -> Any:
    level, depth = [value], 0
    while level:
        if depth > MAX_DEPTH:
            raise ValueError(f"nested more than {MAX_DEPTH} deep")
        inner: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                inner.extend(one.values())
            elif isinstance(one, list | tuple):
                inner.extend(one)
        level, depth = inner, depth + 1
    return value


FreeForm = Annotated[Any, AfterValidator(_shallow)]
"""JSON of any shape, but not of any depth."""

FreeTable = Annotated[dict[str, Any], AfterValidator(_shallow)]
"""A JSON object of any shape, but not of any depth."""


class Frozen(BaseModel):
    """An immutable value that refuses unknown keys and non-finite numbers."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )


class Message(Frozen):
    """A body that crosses a queue. An unknown `schema_version` is a dead letter."""

    schema_version: Literal[1] = 1
