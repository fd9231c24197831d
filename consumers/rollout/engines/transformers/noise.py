"""Sampling noise that is a function of seed and position alone.

The noise of token `v` at position `p` of a sequence with seed `s` is a Gumbel variable made
from a hash of `(s, p, v)`: no generator state exists, so the same tokens come out wherever a
sequence was cut, whatever else is in the batch, and on any device. The hash is SplitMix64
(Steele, Lea and Flood, 2014, doi:10.1145/2660193.2660195); arg max of log-probability plus
Gumbel noise is a draw from the distribution (Gumbel, 1954).
"""

from collections.abc import Sequence

import torch

_GAMMA = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_MASK = (1 << 64) - 1


def gumbel(
    seeds: Sequence[int], positions: Sequence[int], vocab_size: int, device: torch.device
) -> torch.Tensor:
    """Standard Gumbel noise for one token of each sequence.

    Args:
        seeds: One per sequence, any integers; taken modulo 2^64.
        positions: Absolute index of the token that is sampled.
        vocab_size: Columns.
        device: Of the result.

    Returns:
        Float64, (num sequences, vocab_size), finite.
    """
    keys = [
        _signed(_mixed(_mixed(seed & _MASK) + position * _GAMMA))
        for seed, position in zip(seeds, positions, strict=True)
    ]
    column = torch.arange(1, vocab_size + 1, dtype=torch.int64, device=device)
    bits = torch.tensor(keys, dtype=torch.int64, device=device)[:, None] + column * _signed(_GAMMA)
    bits ^= _shifted(bits, 30)
    bits *= _signed(_FIRST)
    bits ^= _shifted(bits, 27)
    bits *= _signed(_SECOND)
    bits ^= _shifted(bits, 31)
    uniform = _shifted(bits, 12).double().add_(0.5).mul_(2.0**-52)
    return uniform.log_().neg_().log_().neg_()


def _mixed(value: int) -> int:
    value = (value + _GAMMA) & _MASK
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    return value ^ (value >> 31)


def _signed(value: int) -> int:
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def _shifted(bits: torch.Tensor, count: int) -> torch.Tensor:
    """Logical shift to the right; torch shifts int64 arithmetically."""
    return (bits >> count) & ((1 << (64 - count)) - 1)
