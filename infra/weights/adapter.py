"""Low-rank adapters (LoRA, 2106.09685): a version as what is added to the starting model.

An adapter names, for a module `m` with weight `W` (out, in), `m.lora_A` (rank, in) and `m.lora_B`
(out, rank), both float32; `lora_B` has the scale `alpha / rank` in it. The version's weight is
`W + lora_B @ lora_A`, in the dtype of `W`.
"""

from collections.abc import Iterator, Mapping

import torch

from infra.weights.errors import WeightsCorrupt

A, B = ".lora_A", ".lora_B"
_BLOCK = 1 << 22


def modules_of(adapter: Mapping[str, torch.Tensor]) -> list[str]:
    """Names of the modules that an adapter changes, sorted.

    Raises:
        WeightsCorrupt: It holds something else, or half of a pair.
    """
    halves = {
        ending: {name.removesuffix(ending) for name in adapter if name.endswith(ending)}
        for ending in (A, B)
    }
    odd = sorted(halves[A] ^ halves[B])
    if odd or len(adapter) != 2 * len(halves[A]):
        strange = odd or sorted(name for name in adapter if not name.endswith((A, B)))
        raise WeightsCorrupt(f"no adapter: {', '.join(strange[:3])} has no counterpart")
    return sorted(halves[A])


def merged(
    base: Mapping[str, torch.Tensor], adapter: Mapping[str, torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Add an adapter to the starting weights, one tensor after the other.

    Products are made in float64 on the CPU, so that trainer and workers round the same sums to the
    same weights whatever the order of summation.

    Args:
        base: The starting weights in the published dtype, by Hugging Face name, in host memory.
        adapter: As the module says.

    Yields:
        Name and new tensor of each weight that is changed.

    Raises:
        WeightsCorrupt: It does not fit the model.
    """
    for module in modules_of(adapter):
        name = f"{module}.weight"
        weight, low, high = base.get(name), adapter[module + A], adapter[module + B]
        if weight is None:
            raise WeightsCorrupt(f"the adapter changes {name}, which the model has not")
        fits = low.ndim == high.ndim == 2 and low.shape[0] == high.shape[1]
        if not fits or weight.shape != (high.shape[0], low.shape[1]):
            raise WeightsCorrupt(
                f"the adapter of {name} {list(weight.shape)} has shapes "
                f"{list(high.shape)} and {list(low.shape)}"
            )
        yield name, _sum(weight, low.double(), high)


def _sum(weight: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    rows = max(1, _BLOCK // max(1, weight.shape[1]))
    result = torch.empty_like(weight)
    for begin in range(0, weight.shape[0], rows):
        part = slice(begin, begin + rows)
        result[part] = torch.addmm(weight[part].double(), high[part].double(), low)
    return result
