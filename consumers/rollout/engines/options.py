"""Which sampling options an engine takes, and how its own are read; imports no engine."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from infra.roles.errors import ConfigError
from schemas.config import RunConfig

_PENALTIES = {
    "repetition_penalty": (0.01, 2.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
}
"""Least and greatest value."""

_CONSTRAINTS = {"json", "regex", "choice", "grammar", "json_object", "structural_tag"}
"""What `structured_outputs` may ask for."""

TAKEN = {
    "vllm": _PENALTIES.keys() | {"structured_outputs"},
    "sglang": _PENALTIES.keys(),
}
"""Names in `[rollout] sampling_options`, by engine; their values are data."""


M = TypeVar("M", bound=BaseModel)


def read_engine_options(model: type[M], given: Mapping[str, Any], *, engine: str) -> M:
    """`[rollout.engine_options]` of an engine that describes them by a model.

    Raises:
        ConfigError: An unknown key, or a value out of range.
    """
    try:
        return model.model_validate(given)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False)[0]
        name = ".".join(str(part) for part in problem["loc"])
        raise ConfigError(
            f"rollout.engine_options.{name}: {problem['msg']}",
            hint=f"the {engine} engine knows {', '.join(model.model_fields)}",
        ) from error


def check_sampling(config: RunConfig) -> None:
    """Refuse what the engine of a recipe does not know, or what engines understand differently.

    Raises:
        ConfigError: With what there is.
    """
    rollout = config.rollout
    taken = TAKEN.get(rollout.engine, frozenset())
    if unknown := sorted(rollout.sampling_options.keys() - taken):
        raise ConfigError(
            f"rollout.sampling_options has {', '.join(unknown)}",
            hint=f"engine {rollout.engine!r} takes {', '.join(sorted(taken)) or 'none'}",
        )
    for name, value in rollout.sampling_options.items():
        _check_value(name, value)
    cuts = {
        "top_k": rollout.top_k > 0,
        "top_p": rollout.top_p < 1,
        "min_p": rollout.min_p > 0,
    }
    if rollout.engine == "sglang" and sum(cuts.values()) > 1:
        raise ConfigError(
            f"rollout has {', '.join(name for name, on in cuts.items() if on)}: SGLang takes "
            "their shares of another whole than the trainer and the other engines do",
            hint="use one of them",
        )
    if rollout.engine == "sglang" and rollout.sampling_options and rollout.min_tokens:
        raise ConfigError(
            "rollout has min_tokens and sampling_options: with SGLang a turn goes on as a new "
            "request after its min_tokens, for which the options would begin anew",
            hint="use one of them",
        )


def _check_value(name: str, value: Any) -> None:
    if name not in _PENALTIES:
        if not isinstance(value, dict) or len(value) != 1 or not value.keys() <= _CONSTRAINTS:
            raise ConfigError(
                f"rollout.sampling_options.{name} is {value!r}",
                hint=f"it is a table with one of {', '.join(sorted(_CONSTRAINTS))}",
            )
        return
    low, high = _PENALTIES[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ConfigError(
            f"rollout.sampling_options.{name} is {value!r}, must be from {low:g} to {high:g}"
        )
