"""AdamW with linear warm-up."""

from collections.abc import Iterable

import torch

from schemas.config import TrainerSection


def build_adamw(
    parameters: Iterable[torch.nn.Parameter], section: TrainerSection
) -> torch.optim.AdamW:
    """AdamW (1711.05101); weight decay applies to matrices, not to norms and biases."""
    parameters = list(parameters)
    return torch.optim.AdamW(
        [
            {
                "params": [one for one in parameters if one.ndim >= 2],
                "weight_decay": section.weight_decay,
            },
            {"params": [one for one in parameters if one.ndim < 2], "weight_decay": 0.0},
        ],
        lr=section.lr,
        betas=section.betas,
        fused=True,
    )


def learning_rate(section: TrainerSection, step: int) -> float:
    """Of optimizer step number `step`, from 1: linear to the peak at `warmup_steps`, then flat."""
    if step >= section.warmup_steps:
        return section.lr
    return section.lr * step / section.warmup_steps
