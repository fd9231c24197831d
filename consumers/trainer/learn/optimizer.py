"""AdamW with linear warm-up."""

from collections.abc import Iterable

import torch

from schemas.config import TrainerSection


def build_adamw(
    parameters: Iterable[torch.nn.Parameter], section: TrainerSection
) -> torch.optim.AdamW:
    """AdamW (1711.05101); weight decay applies to matrices, not to norms and biases."""
    parameters = list(parameters)
    matrices = [one for one in parameters if one.ndim >= 2]
    others = [one for one in parameters if one.ndim < 2]
    optimizer = torch.optim.AdamW([{"params": matrices}, {"params": others}], fused=True)
    set_terms(optimizer, section)
    return optimizer


def set_terms(optimizer: torch.optim.AdamW, section: TrainerSection) -> None:
    """Let an optimizer of `build_adamw` follow a recipe."""
    for group, decay in zip(optimizer.param_groups, (section.weight_decay, 0.0), strict=True):
        group |= {"lr": section.lr, "betas": section.betas, "weight_decay": decay}


def learning_rate(section: TrainerSection, step: int) -> float:
    """Of optimizer step number `step`, from 1: linear to the peak at `warmup_steps`, then flat."""
    if step >= section.warmup_steps:
        return section.lr
    return section.lr * step / section.warmup_steps
