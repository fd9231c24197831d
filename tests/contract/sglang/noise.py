"""The noise of a real SGLang server with seeds, for a test that asks what decides a token."""

from collections.abc import Sequence

import torch

from tests.contract.sglang.cpu.sgl_kernel import murmur_hash32

_WORDS = (1 << 32) - 1


def sglang_noise(
    seeds: Sequence[int], positions: Sequence[int], vocab_size: int, device: torch.device
) -> torch.Tensor:
    """Gumbel noise as SGLang adds it to log-probabilities.

    Arguments and result as those of the transformers engine's `gumbel`; SGLang counts from the
    token before the one that is sampled, and its uniform numbers have 32 bits.
    """
    hashed = murmur_hash32(
        torch.tensor(seeds), torch.tensor(positions) - 1, torch.arange(vocab_size)
    )
    uniform = hashed.double().div_(_WORDS).clamp_(2.0**-1022, 1 - 2.0**-32)
    return uniform.log_().neg_().log_().neg_().to(device)
