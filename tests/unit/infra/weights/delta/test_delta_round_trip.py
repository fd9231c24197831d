"""What is encoded is what is applied, bit for bit, for every dtype, shape and density."""

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.weights.delta import layout
from infra.weights.delta.decode import parse_delta
from infra.weights.delta.encode import encode_delta
from infra.weights.file_layout import ITEM_BYTES
from infra.weights.fingerprint import fingerprint
from tests.factories.deltas import (
    applied,
    bf16,
    entries,
    is_right,
    same_state,
    state_of,
    taken_apart,
    tensor_of,
)

MODES = ["step", "absolute"]
SHAPES = st.lists(
    st.one_of(
        st.lists(st.integers(0, 9), max_size=3).map(tuple),
        st.tuples(st.integers(0, 3000)),
    ),
    min_size=1,
    max_size=5,
)


def pair(dtype, shapes, density, seed):
    """Any bit patterns, and others in some places."""
    random = np.random.default_rng(seed)
    width = ITEM_BYTES[dtype]
    before, after = {}, {}
    for number, shape in enumerate(shapes):
        count = int(np.prod(shape, dtype=int))
        high = 2 if dtype == "bool" else 256
        old, other = random.integers(0, high, (2, count * width), np.uint8).view(f"<u{width}")
        new = np.where(random.random(count) < density, other, old)
        before[f"t{number}"] = tensor_of(old, dtype, shape)
        after[f"t{number}"] = tensor_of(new, dtype, shape)
    return before, after


@settings(max_examples=300, deadline=None)
@given(
    dtype=st.sampled_from(sorted(ITEM_BYTES)),
    shapes=SHAPES,
    density=st.sampled_from([0.0, 0.003, 0.05, 0.3, 0.7, 1.0]),
    mode=st.sampled_from(MODES),
    chunk=st.sampled_from([7, 300, 4096, layout.CHUNK_ELEMENTS]),
    seed=st.integers(0, 2**32),
)
def test_every_dtype_shape_density_and_cut(dtype, shapes, density, mode, chunk, seed):
    before, after = pair(dtype, shapes, density, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "CHUNK_ELEMENTS", chunk)
        encoded = encode_delta(before, after, mode=mode)
        delta = parse_delta(b"".join(encoded.body))
    state, wanted = applied(delta, before), state_of(after)
    assert same_state(state, wanted)
    assert is_right(state, delta)
    assert delta.entries == encoded.entries == entries(after)
    assert encoded.fingerprint == fingerprint(after)
    different = {name for name, bits in state_of(before).items() if (bits != wanted[name]).any()}
    assert delta.changed == encoded.changed == different
    assert encoded.size_bytes == sum(map(len, encoded.body))
    assert encoded.full_bytes == sum(tensor.nbytes for tensor in after.values())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("gap", [0, 1, 253, 254, 255, 256, 257, 509, 510, 511, 65_536])
def test_gaps_around_the_escape_and_far_beyond(gap, mode):
    before = torch.zeros(3 * gap + 5, dtype=torch.bfloat16)
    after = before.clone()
    after[[gap, 2 * gap + 1, 3 * gap + 4]] = 1.0
    encoded = encode_delta({"w": before}, {"w": after}, mode=mode)
    assert same_state(applied(b"".join(encoded.body), {"w": before}), state_of({"w": after}))


@pytest.mark.parametrize("mode", MODES)
def test_bit_patterns_that_compare_strangely(mode):
    strange = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-40, 1.0]
    patterns = torch.tensor(strange, dtype=torch.bfloat16)
    other_nan = torch.tensor([0x7FC1, 0xFFC0, 0x7F81], dtype=torch.int32)
    nans = other_nan.to(torch.uint16).view(torch.bfloat16)
    everything = torch.cat([patterns, nans])
    before = everything.repeat_interleave(len(everything))
    after = everything.repeat(len(everything))
    encoded = encode_delta({"w": before}, {"w": after}, mode=mode)
    state = applied(b"".join(encoded.body), {"w": before})
    assert same_state(state, state_of({"w": after}))
    same = encode_delta({"w": after}, {"w": after.clone()}, mode=mode)
    assert not same.changed


@pytest.mark.parametrize("mode", MODES)
def test_nothing_and_everything_changed(mode):
    before = {"a": bf16(torch.randn(500)), "b": torch.randn(20, 30)}
    nothing = encode_delta(before, before, mode=mode)
    assert nothing.changed == frozenset()
    assert len(nothing.body) == 1
    assert same_state(applied(b"".join(nothing.body), before), state_of(before))
    after = {name: bf16(each, 3) if name == "a" else each + 1 for name, each in before.items()}
    everything = encode_delta(before, after, mode=mode)
    assert everything.changed == {"a", "b"}
    assert same_state(applied(b"".join(everything.body), before), state_of(after))


def test_a_tensor_without_likeness_is_sent_raw_beside_one_that_is_sparse():
    generator = torch.Generator().manual_seed(0)
    before = {name: bf16(torch.randn(20_000, generator=generator)) for name in ("new", "near")}
    after = {"new": bf16(torch.randn(20_000, generator=generator)), "near": before["near"].clone()}
    after["near"][::100] = bf16(after["near"][::100], 1)
    encoded = encode_delta(before, after, mode="step")
    data = b"".join(encoded.body)
    told, _ = taken_apart(data)
    kinds = {each["name"]: each["pieces"][0][0] for each in told["tensors"]}
    assert kinds == {"new": "raw", "near": "step"}
    assert same_state(applied(data, before), state_of(after))
    assert encoded.size_bytes < 0.8 * after["new"].nbytes


def test_many_small_steps_are_sent_as_steps_though_everything_changed():
    before = {"w": bf16(torch.randn(20_000, generator=torch.Generator().manual_seed(0)))}
    after = {"w": bf16(before["w"], 1)}
    encoded = encode_delta(before, after, mode="step")
    assert taken_apart(b"".join(encoded.body))[0]["tensors"][0]["pieces"][0][0] == "step"
    assert encoded.size_bytes < 500


@settings(max_examples=60, deadline=None)
@given(
    dtype=st.sampled_from(sorted(ITEM_BYTES)),
    shapes=SHAPES,
    density=st.sampled_from([0.02, 0.5, 1.0]),
    seed=st.integers(0, 2**32),
)
def test_absolute_deltas_may_be_repeated_and_go_on_after_a_break(dtype, shapes, density, seed):
    before, after = pair(dtype, shapes, density, seed)
    wanted = state_of(after)
    delta = parse_delta(b"".join(encode_delta(before, after, mode="absolute").body))
    once = applied(delta, before)
    assert same_state(applied(delta, once), wanted)
    half = state_of(before)
    for name, bits in half.items():
        bits[::2] = wanted[name][::2]
    assert same_state(applied(delta, half), wanted)


def test_memory_does_not_grow_with_the_tensor(monkeypatch):
    """Beside the delta itself: some chunks, never an array as long as the tensor."""
    monkeypatch.setattr(layout, "CHUNK_ELEMENTS", 1 << 15)
    before = {"w": bf16(torch.randn(1 << 22, generator=torch.Generator().manual_seed(0)))}
    after = {"w": before["w"].clone()}
    after["w"][::100] = bf16(after["w"][::100], 1)
    tracemalloc.start()
    try:
        data = b"".join(encode_delta(before, after, mode="step").body)
        encoding = tracemalloc.get_traced_memory()[1]
        state = state_of(before)
        tracemalloc.reset_peak()
        held = tracemalloc.get_traced_memory()[0]
        parse_delta(data).apply("w", state["w"])
        applying = tracemalloc.get_traced_memory()[1] - held
    finally:
        tracemalloc.stop()
    assert same_state(state, state_of(after))
    assert max(encoding, applying) < 2 << 20


def test_tensors_need_not_be_contiguous():
    before = {"w": torch.arange(12.0).reshape(3, 4).T, "x": torch.arange(20.0)[::2]}
    after = {name: each + 1 for name, each in before.items()}
    encoded = encode_delta(before, after, mode="step")
    assert encoded.fingerprint == fingerprint(after)
    assert same_state(applied(b"".join(encoded.body), before), state_of(after))


def test_the_file_does_not_depend_on_the_order_of_the_names():
    before, after = pair("bfloat16", [(30,), (4, 5), ()], 0.5, 1)
    turned = {name: after[name] for name in reversed(after)}
    one, other = (encode_delta(before, new, mode="step") for new in (after, turned))
    assert one.body == other.body


@pytest.mark.parametrize(
    ("new", "why"),
    [
        ({}, "one side only"),
        ({"w": torch.zeros(2, 3), "x": torch.zeros(1)}, "one side only"),
        ({"w": torch.zeros(3, 2)}, "was torch.float32"),
        ({"w": torch.zeros(2, 3, dtype=torch.float16)}, "was torch.float32"),
    ],
)
def test_what_is_not_alike_has_no_delta(new, why):
    with pytest.raises(ValueError, match=why):
        encode_delta({"w": torch.zeros(2, 3)}, new, mode="step")


def test_an_unknown_dtype_has_no_delta():
    complex_ = {"w": torch.zeros(2, dtype=torch.complex64)}
    with pytest.raises(ValueError, match="publish in full"):
        encode_delta(complex_, complex_, mode="step")


@pytest.mark.parametrize(
    "state", [np.zeros(5, np.uint16), np.zeros(6, np.uint32), np.zeros((2, 3), np.uint16)]
)
def test_a_state_of_another_size_or_width_is_left_alone(state):
    before = {"w": torch.zeros(6, dtype=torch.bfloat16)}
    delta = parse_delta(b"".join(encode_delta(before, {"w": before["w"] + 1}, mode="step").body))
    with pytest.raises(ValueError, match="6 unsigned integers of 2 bytes"):
        delta.apply("w", state)
    assert not state.any()
