import pytest
import torch

from infra.weights.adapter import merged
from infra.weights.errors import WeightsCorrupt

BASE = {"m.weight": torch.arange(12.0).reshape(3, 4), "other.weight": torch.ones(2, 2)}


def adapter(**changes):
    tensors = {"m.lora_A": torch.ones(2, 4), "m.lora_B": torch.full((3, 2), 0.25)}
    return {name: one for name, one in (tensors | changes).items() if one is not None}


def test_the_product_is_added_to_what_it_names():
    changed = dict(merged(BASE, adapter()))
    assert changed.keys() == {"m.weight"}
    assert torch.equal(changed["m.weight"], BASE["m.weight"] + 0.5)


def test_the_dtype_is_that_of_the_start():
    base = {name: tensor.bfloat16() for name, tensor in BASE.items()}
    changed = dict(merged(base, adapter()))
    assert changed["m.weight"].dtype == torch.bfloat16


def test_blocks_of_rows_make_no_difference(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    base = {"m.weight": torch.randn(37, 4, generator=generator)}
    low, high = torch.randn(2, 4, generator=generator), torch.randn(37, 2, generator=generator)
    given = {"m.lora_A": low, "m.lora_B": high}
    whole = dict(merged(base, given))["m.weight"]
    monkeypatch.setattr("infra.weights.adapter._BLOCK", 12)
    assert torch.equal(dict(merged(base, given))["m.weight"], whole)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"m.lora_B": None}, "m has no counterpart"),
        ({"m.weight": torch.ones(3, 4)}, "m.weight has no counterpart"),
        ({"x.lora_A": torch.ones(2, 4), "x.lora_B": torch.ones(3, 2)}, "x.weight"),
        ({"m.lora_A": torch.ones(2, 5)}, r"\[3, 2\] and \[2, 5\]"),
        ({"m.lora_A": torch.ones(3, 4)}, r"\[3, 2\] and \[3, 4\]"),
        ({"m.lora_A": torch.ones(8)}, r"and \[8\]"),
    ],
)
def test_what_does_not_fit_is_refused(changes, complaint):
    with pytest.raises(WeightsCorrupt, match=complaint):
        dict(merged(BASE, adapter(**changes)))
