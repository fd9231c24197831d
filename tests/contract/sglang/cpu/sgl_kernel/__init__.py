"""In the place of SGLang's kernels, which have no CPU wheel.

SGLang imports a few names from here without asking. No operator is registered with torch, so it
finds a CPU without AMX and takes its plain torch code for everything; what it calls nevertheless
says so.
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


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError(f"the CPU server has no kernel {name}")

    return missing
