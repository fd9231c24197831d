"""The two base classes of everything that is written to a queue or a file."""

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """An immutable value that refuses unknown keys and non-finite numbers."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )


class Message(Frozen):
    """A body that crosses a queue. An unknown `schema_version` is a dead letter."""

    schema_version: Literal[1] = 1
