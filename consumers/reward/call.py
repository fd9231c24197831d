"""How a reward function is called, and what its answer means."""

import asyncio
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from consumers.reward.view import RolloutView
from infra.roles.errors import ConfigError, WarrenError

SIGNATURES = (
    "write `def compute_score(data_source, solution_str, ground_truth, extra_info=None)` "
    "or `def score(rollout)`"
)


class BadScore(WarrenError):
    """A reward function returned something that is not a finite number."""


@dataclass(frozen=True, slots=True)
class Score:
    """One function's answer."""

    value: float
    extras: Mapping[str, float] = field(default_factory=dict)
    """Numbers that it returned beside the score."""


@dataclass(frozen=True, slots=True)
class Scorer:
    """A reward function, ready to be called in either signature."""

    use: str
    function: Callable[..., Any]
    whole: bool
    """It takes the rollout itself."""
    with_extra_info: bool

    @classmethod
    def of(cls, use: str, function: Any) -> "Scorer":
        """Look at the function's signature.

        Raises:
            ConfigError: It is not callable, or takes other arguments.
        """
        if not callable(function):
            raise ConfigError(f"reward {use!r} is not a function", hint=SIGNATURES)
        signature = inspect.signature(function)
        required = [
            name
            for name, parameter in signature.parameters.items()
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
        if required == ["rollout"]:
            return cls(use, function, whole=True, with_extra_info=False)
        arguments: dict[str, Any] = {"data_source": "", "solution_str": "", "ground_truth": None}
        for with_extra_info in (True, False):
            given = arguments | ({"extra_info": {}} if with_extra_info else {})
            try:
                signature.bind(**given)
            except TypeError:
                continue
            return cls(use, function, whole=False, with_extra_info=with_extra_info)
        raise ConfigError(f"reward {use!r} takes {signature}", hint=SIGNATURES)

    def __call__(self, view: RolloutView, loop: asyncio.AbstractEventLoop) -> Score:
        """Score a rollout; whatever the function raises passes through.

        Raises:
            BadScore: The answer is not a finite number.
        """
        if self.whole:
            answer = self.function(rollout=view)
        else:
            extra = {"extra_info": view.extra_info} if self.with_extra_info else {}
            answer = self.function(
                data_source=view.data_source,
                solution_str=view.response,
                ground_truth=view.ground_truth,
                **extra,
            )
        if inspect.isawaitable(answer):
            answer = loop.run_until_complete(_awaited(answer))
        return read_answer(answer)


async def _awaited(answer: Any) -> Any:
    return await answer


def read_answer(answer: object) -> Score:
    """A number, or a dictionary with `score` and other numbers; other values in it are left out.

    Raises:
        BadScore: Neither, or not finite.
    """
    extras: dict[str, float] = {}
    if isinstance(answer, Mapping):
        if "score" not in answer:
            raise BadScore(f"returned a dictionary without 'score': {sorted(map(str, answer))}")
        numbers = {str(name): _number(value) for name, value in answer.items() if name != "score"}
        extras = {name: value for name, value in numbers.items() if value is not None}
        answer = answer["score"]
    value = _number(answer)
    if value is None:
        shown = repr(answer)
        raise BadScore(f"returned {shown[:80]} ({type(answer).__name__}), not a finite number")
    return Score(value, extras)


def _number(value: Any) -> float | None:
    """The value as a finite float, or None. Scalars of numpy and torch answer to `item`."""
    if not isinstance(value, str | bytes) and getattr(value, "ndim", None) == 0:
        value = value.item()
    if not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
