"""In the place of SGLang's kernels, which have no CPU wheel.

SGLang imports a few names from here without asking. Of its operators only one is registered with
torch, the noise of seeded sampling, so it finds a CPU without AMX and takes its plain torch code
for everything; what it calls nevertheless says so.
"""

from typing import NoReturn

import torch

__version__ = "0.0+torch"


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Write each request's new cache slots, one after the other, into its row of the table."""
    done = 0
    rows = zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True)
    for row, start, end in rows:
        slots = out_cache_loc[done : done + end - start]
        req_to_token[row, start:end] = slots.to(req_to_token.dtype)
        done += end - start


_HALF = (1 << 32) - 1
_library = torch.library.Library("sgl_kernel", "FRAGMENT")
_library.define("murmur_hash32_cpu(Tensor seed, Tensor positions, Tensor columns) -> Tensor")


def murmur_hash32(
    seed: torch.Tensor, positions: torch.Tensor, columns: torch.Tensor
) -> torch.Tensor:
    """MurmurHash3 (32 bit) of seed, position and column, (rows, columns): SGLang's noise."""
    seed = seed.view(torch.int64)[:, None]
    blocks = seed & _HALF, seed >> 32 & _HALF, positions[:, None] & _HALF, columns[None] & _HALF
    value = torch.zeros(len(seed), len(columns), dtype=torch.int64)
    for block in blocks:
        block = _turned(block * 0xCC9E2D51 & _HALF, 15) * 0x1B873593 & _HALF
        value = (_turned(value ^ block, 13) * 5 + 0xE6546B64) & _HALF
    value = value ^ 16
    value = (value ^ value >> 16) * 0x85EBCA6B & _HALF
    value = (value ^ value >> 13) * 0xC2B2AE35 & _HALF
    return (value ^ value >> 16).to(torch.uint32)


def _turned(value: torch.Tensor, by: int) -> torch.Tensor:
    return (value << by | value >> 32 - by) & _HALF


_library.impl("murmur_hash32_cpu", murmur_hash32, "CPU")


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError(f"the CPU server has no kernel {name}")

    return missing
