"""What a server holds, measured: the checksums that SGLang takes of its parameters.

A checksum of a CPU server is the beginning of the SHA-256 of a parameter's bytes, so that it can be
computed beforehand from the tensors that are to be loaded: that proves every byte. SGLang fuses
some parameters: query, key and value rows lie in one, gate and up rows in another, and a
vocabulary is padded with rows of zeros. On a GPU, and where a server is split over several, the
checksums are of another kind: there they prove that two states are the same or are not.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

_FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
_VOCABULARY = ("embed_tokens", "lm_head")
_PADDED_TO = 64
_DIGEST_BYTES = 8

Checksums = Mapping[str, str]
"""By SGLang's names, hexadecimal."""


@dataclass
class Proof:
    """Which state the server is in, as far as SGLang tells.

    Args:
        exact: Whether checksums can be computed here.
    """

    exact: bool
    _states: dict[str, str] = field(default_factory=dict)

    def problem(self, fingerprint: str, expected: Checksums, found: Checksums) -> str:
        """Compare what the server holds with what it must hold.

        Args:
            fingerprint: Of the weights that it must hold.
            expected: Of those that can be computed.
            found: What the server tells.

        Returns:
            What is wrong, or nothing.
        """
        if not found:
            return "it tells no checksums"
        if self.exact:
            both = expected.keys() & found
            wrong = sorted(name for name in both if expected[name] != found[name])
            if wrong:
                return f"{len(wrong)} of {len(found)} tensors have other values, first {wrong[0]}"
        state = " ".join(f"{name}={found[name]}" for name in sorted(found))
        state = hashlib.sha256(state.encode()).hexdigest()
        for other, theirs in self._states.items():
            if (state == theirs) != (other == fingerprint):
                how = "the same as" if state == theirs else "others than"
                return f"its checksums are {how} those of weights {other[:12]} were"
        self._states[fingerprint] = state
        return ""

    def coverage(self, expected: Checksums, found: Checksums) -> str:
        """How much is proved, for people."""
        num_proved = len(expected.keys() & found.keys()) if self.exact else 0
        if num_proved == len(found):
            return f"the bytes of all {num_proved} tensors are proved by checksums"
        return (
            f"the bytes of {num_proved} of {len(found)} tensors are proved by checksums, of the "
            "others only that they change when they must"
        )


def expected_checksums(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Those of a CPU server, not split, after it loaded them.

    Args:
        tensors: By Hugging Face name, in the dtype that is served.
    """
    parts: dict[str, list[torch.Tensor]] = {}
    for name, tensor in tensors.items():
        parts.setdefault(_served_name(name), []).append(tensor)
    for name, group in parts.items():
        fused = next((leaf for leaf in _FUSED if f".{leaf}." in name), None)
        if fused is not None:
            group[:] = [tensors[name.replace(fused, part)] for part in _FUSED[fused]]
        elif any(f"{leaf}." in name for leaf in _VOCABULARY):
            group.append(group[0].new_zeros(-len(group[0]) % _PADDED_TO, *group[0].shape[1:]))
    return {name: _digest(group) for name, group in parts.items()}


def _served_name(name: str) -> str:
    for fused, leaves in _FUSED.items():
        for leaf in leaves:
            if f".{leaf}." in name:
                return name.replace(leaf, fused)
    return name


def _digest(parts: list[torch.Tensor]) -> str:
    total = hashlib.sha256()
    for part in parts:
        flat = part.detach().cpu().contiguous().reshape(-1)
        total.update(flat.view(torch.uint8).numpy().data)
    return total.digest()[:_DIGEST_BYTES].hex()
