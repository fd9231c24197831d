"""What checksums prove."""

import hashlib

import torch

from consumers.rollout.engines.sglang.proof import Proof, expected_checksums


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
    found = expected_checksums({**one, **two, "embed_tokens.weight": vocabulary})
    q, k, v = (one[f"layers.0.attn.{leaf}_proj.weight"] for leaf in "qkv")
    assert found == {
        "layers.0.attn.qkv_proj.weight": digest(q, k, v),
        "layers.0.mlp.gate_up_proj.weight": digest(
            two["layers.0.mlp.gate_proj.weight"], two["layers.0.mlp.up_proj.weight"]
        ),
        "layers.0.mlp.down_proj.weight": digest(two["layers.0.mlp.down_proj.weight"]),
        "embed_tokens.weight": digest(vocabulary, torch.zeros(63, 4)),
    }


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
