"""Whether weights fit a model, found out before anything is touched."""

from collections.abc import Mapping

import torch

from consumers.rollout.engines.base import WeightsRefused
from infra.weights.fingerprint import TIED_HEAD
from infra.weights.prepared import PreparedWeights

Layout = Mapping[str, tuple[str, tuple[int, ...]]]
"""Tensor name -> dtype without its module, shape."""


def layout_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Names, dtypes and shapes."""
    return {
        name: (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        for name, tensor in tensors.items()
    }


def check_layout(expected: Layout, weights: PreparedWeights) -> None:
    """Compare with what the engine holds.

    A head that the model ties to its embedding may be present, if it has the same values.

    Args:
        expected: Of the engine's own parameters.
        weights: To be loaded.

    Raises:
        WeightsRefused: A tensor is missing, unknown, or of another shape or dtype.
    """
    given = layout_of(weights.tensors)
    unknown = given.keys() - expected.keys()
    if TIED_HEAD in unknown and _repeats_another(weights.tensors):
        unknown = unknown - {TIED_HEAD}
    problems = [f"{name} is unknown to the model" for name in sorted(unknown)]
    problems += [f"{name} is missing" for name in sorted(expected.keys() - given.keys())]
    problems += [
        f"{name} is {_described(given[name])}, the model has {_described(expected[name])}"
        for name in sorted(expected.keys() & given.keys())
        if given[name] != expected[name]
    ]
    if problems:
        more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
        raise WeightsRefused(
            f"version {weights.version} does not fit the model: {'; '.join(problems[:3])}{more}",
            hint="trainer and engines must use the same [model] path and dtype",
        )


def _repeats_another(tensors: Mapping[str, torch.Tensor]) -> bool:
    head = tensors[TIED_HEAD]
    return any(
        name != TIED_HEAD
        and tensor.shape == head.shape
        and tensor.dtype == head.dtype
        and torch.equal(tensor, head)
        for name, tensor in tensors.items()
    )


def _described(entry: tuple[str, tuple[int, ...]]) -> str:
    return f"{entry[0]} {list(entry[1])}"
