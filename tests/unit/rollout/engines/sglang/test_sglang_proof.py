"""What checksums prove."""

import hashlib

import pytest
import torch

from consumers.rollout.engines.sglang.checksums import cpu_digest, expected_checksums, gpu_digest
from consumers.rollout.engines.sglang.proof import Proof


def digest(*parts: torch.Tensor) -> str:
    raw = b"".join(part.contiguous().view(torch.uint8).numpy().tobytes() for part in parts)
    return hashlib.sha256(raw).hexdigest()[:16]


def test_fused_and_padded_parameters():
    one = {
        f"layers.0.attn.{leaf}_proj.weight": torch.randn(rows, 4).bfloat16()
        for leaf, rows in (("v", 2), ("q", 6), ("k", 2))
    }
    two = {f"layers.0.mlp.{leaf}_proj.weight": torch.randn(3, 4) for leaf in ("up", "gate", "down")}
    vocabulary = torch.randn(65, 4)
    found = expected_checksums({**one, **two, "embed_tokens.weight": vocabulary}, cpu_digest)
    q, k, v = (one[f"layers.0.attn.{leaf}_proj.weight"] for leaf in "qkv")
    assert found == {
        "layers.0.attn.qkv_proj.weight": digest(q, k, v),
        "layers.0.mlp.gate_up_proj.weight": digest(
            two["layers.0.mlp.gate_proj.weight"], two["layers.0.mlp.up_proj.weight"]
        ),
        "layers.0.mlp.down_proj.weight": digest(two["layers.0.mlp.down_proj.weight"]),
        "embed_tokens.weight": digest(vocabulary, torch.zeros(63, 4)),
    }


@pytest.mark.parametrize(
    ("count", "dtype", "checksum"),
    [
        (1, torch.float32, "3d93a6540b54ef2a"),
        (3, torch.bfloat16, "a0ca8384bbeaa024"),
        (300, torch.float32, "6e56fbd3f187b78e"),
        (8192, torch.float32, "cc76cb9b8e9753cb"),
        (20001, torch.bfloat16, "69f4cb88809f6bd4"),
        (70000, torch.float32, "e6282838f251ce0c"),
    ],
)
def test_what_sglangs_own_kernels_say(count, dtype, checksum):
    """Of SGLang 0.5.23, run by Triton's interpreter."""
    tensor = (torch.arange(count) * 37 % 1009).to(dtype)
    assert gpu_digest([tensor]) == checksum
    assert gpu_digest([tensor[: count // 2], tensor[count // 2 :]]) == checksum


def test_a_large_tensor_is_hashed_in_pieces():
    """More than 32 tiles, against the definition, word by word in Python's integers."""
    words = torch.arange(32 * 8192 + 5, dtype=torch.int32) * 40503
    assert gpu_digest([words]) == gpu_by_definition(words.to(torch.int64).tolist())


def gpu_by_definition(words: list[int]) -> str:
    full, half = (1 << 64) - 1, (1 << 32) - 1

    def mixed(value: int) -> int:
        value ^= value >> 16
        value = value * 0x85EBCA6B & half
        value ^= value >> 13
        value = value * 0xC2B2AE35 & half
        return value ^ value >> 16

    lanes = (0x27D4EB2D, 15, 0x243F6A88), (0x165667B1, 13, (0x243F6A88 * 0x9E3779B1) ^ 0xDEADBEEF)
    total = 0
    for tile in range(0, len(words), 8192):
        sums = [0, 0]
        for at in range(tile, min(tile + 8192, len(words))):
            for lane, (factor, turn, seed) in enumerate(lanes):
                turned = ((at << turn) | (at >> (32 - turn))) & half
                sums[lane] += mixed(((at * factor + seed) & half) ^ turned ^ (words[at] & half))
        high, low = (mixed((one & half) ^ (4 * len(words) & half)) for one in sums)
        total += (high << 32) | low
    total &= full
    total ^= total >> 30
    total = total * 0xBF58476D1CE4E5B9 & full
    total ^= total >> 27
    total = total * 0x94D049BB133111EB & full
    return f"{total ^ (total >> 31):016x}"


def test_the_first_answer_tells_whether_the_kind_is_known():
    known, unknown = Proof(exact=True, certain=False), Proof(exact=True, certain=False)
    expected = {"a": "1", "b": "2"}
    assert known.problem("one", expected, {"a": "1", "b": "9"}).startswith("1 of 2 tensors")
    assert unknown.problem("one", expected, {"a": "8", "b": "9"}) == ""
    assert "0 of 2 tensors" in unknown.coverage(expected, {"a": "8", "b": "9"})
    assert known.problem("two", expected, {"a": "8", "b": "9"}).startswith("2 of 2 tensors")


def test_exact_checksums_prove_every_byte_that_both_know():
    proof = Proof(exact=True)
    expected = {"a": "1", "b": "2", "only ours": "3"}
    assert proof.problem("one", expected, {"a": "1", "b": "2", "theirs": "9"}) == ""
    assert "2 of 3 tensors" in proof.coverage(expected, {"a": "1", "b": "2", "theirs": "9"})
    problem = proof.problem("two", expected, {"a": "1", "b": "8", "theirs": "9"})
    assert problem == "1 of 3 tensors have other values, first b"


def test_others_must_change_when_the_weights_do_and_only_then():
    proof = Proof(exact=False)
    assert proof.problem("one", {}, {"a": "1"}) == ""
    assert proof.problem("one", {}, {"a": "1"}) == ""
    assert "the same as those of weights one" in proof.problem("two", {}, {"a": "1"})
    assert proof.problem("two", {}, {"a": "2"}) == ""
    assert "others than those of weights one" in proof.problem("one", {}, {"a": "3"})
    assert "no checksums" in proof.problem("three", {}, {})


def test_a_server_that_tells_of_other_tensors_than_before() -> None:
    proof = Proof(exact=True)
    assert proof.problem("one", {"a": "1"}, {"a": "1", "b": "2"}) == ""
    assert "other tensors than before: a" in proof.problem("two", {"a": "3"}, {"b": "4"})
