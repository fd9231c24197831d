"""The checksums that a server tells of its parameters, computed from the tensors it must hold.

On a CPU: the first 8 bytes of SHA-256. On a GPU: SGLang's own hash (`gpu_tensor_hash`): of every
32-bit word, mixed with its place by the finaliser of MurmurHash3 in two lanes; summed in tiles of
8192 words, mixed again, summed over all tiles and finished by that of SplitMix64.

SGLang fuses some parameters: query, key and value rows lie in one, gate and up rows in another, and
a vocabulary is padded with rows of zeros.
"""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import torch

_FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
_VOCABULARY = ("embed_tokens", "lm_head")
_PADDED_TO = 64

_TILE = 8192
_TILES_AT_ONCE = 32
_MIX = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)
_SEED = 0x243F6A88
_LANES = (
    (np.uint32(0x27D4EB2D), 15, np.uint32(_SEED)),
    (np.uint32(0x165667B1), 13, np.uint32(((_SEED * 0x9E3779B1) ^ 0xDEADBEEF) & 0xFFFFFFFF)),
)
"""Factor and rotation of the place, and seed."""
_MASK = (1 << 64) - 1
_MAX_THREADS = 8

Words = npt.NDArray[np.uint32]
Digest = Callable[[Sequence[torch.Tensor]], str]
"""Of tensors that lie one after the other; 16 hexadecimal digits."""


def expected_checksums(tensors: Mapping[str, torch.Tensor], digest: Digest) -> dict[str, str]:
    """By SGLang's names, after it loaded these on one device.

    Args:
        tensors: By Hugging Face name, in the dtype that is served.
        digest: `cpu_digest` or `gpu_digest`.
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
    with ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1)) as pool:
        return dict(zip(parts, pool.map(digest, parts.values()), strict=True))


def cpu_digest(parts: Sequence[torch.Tensor]) -> str:
    """As a CPU server computes it."""
    total = hashlib.sha256()
    for part in parts:
        total.update(_bytes(part).data)
    return total.digest()[:8].hex()


def gpu_digest(parts: Sequence[torch.Tensor]) -> str:
    """As a GPU server computes it."""
    raw = np.concatenate([_bytes(part) for part in parts])
    if spare := -len(raw) % 4:
        raw = np.concatenate([raw, np.zeros(spare, np.uint8)])
    words = raw.view(np.uint32)
    if not len(words):
        return f"{0:016x}"
    size = np.uint32(4 * len(words) & 0xFFFFFFFF)
    total = 0
    for start in range(0, len(words), _TILE * _TILES_AT_ONCE):
        some = words[start : start + _TILE * _TILES_AT_ONCE]
        places = np.arange(start, start + len(some), dtype=np.uint64).astype(np.uint32)
        tiles = np.arange(0, len(some), _TILE)
        high, low = (
            _mixed(np.add.reduceat(_lane(some, places, lane), tiles, dtype=np.uint32) ^ size)
            for lane in _LANES
        )
        both = (high.astype(np.uint64) << np.uint64(32)) | low
        total += int(both.sum(dtype=np.uint64))
    return f"{_finished(total & _MASK):016x}"


def _lane(words: Words, places: Words, lane: tuple[np.uint32, int, np.uint32]) -> Words:
    factor, turn, seed = lane
    turned = (places << np.uint32(turn)) | (places >> np.uint32(32 - turn))
    return _mixed((places * factor + seed) ^ turned ^ words)


def _mixed(value: Words) -> Words:
    """In place."""
    value ^= value >> np.uint32(16)
    value *= _MIX[0]
    value ^= value >> np.uint32(13)
    value *= _MIX[1]
    value ^= value >> np.uint32(16)
    return value


def _finished(value: int) -> int:
    value ^= value >> 30
    value = value * 0xBF58476D1CE4E5B9 & _MASK
    value ^= value >> 27
    value = value * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)


def _bytes(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    raw: npt.NDArray[np.uint8] = (
        tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    )
    return raw


def _served_name(name: str) -> str:
    for fused, leaves in _FUSED.items():
        for leaf in leaves:
            if f".{leaf}." in name:
                return name.replace(leaf, fused)
    return name
