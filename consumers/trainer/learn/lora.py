"""Low-rank adapters as what is trained (LoRA, 2106.09685), by way of PEFT.

The base stays as it was; masters, optimizer and checkpoints are of the adapter alone. Published
are the starting weights plus the adapter, and the adapter itself (`infra/weights/adapter.py`).
"""

import logging
from pathlib import Path
from typing import Any, Self

import torch
from safetensors.torch import save_file
from torch import Tensor

from consumers.trainer.learn.check import check_targets, require_peft
from consumers.trainer.learn.policy import Policy
from infra.roles.errors import ConfigError
from infra.weights.adapter import A, B, merged
from schemas.config import RunConfig, TrainerSection

logger = logging.getLogger(__name__)

_NAME = "default"
"""PEFT's name of an adapter that has none."""


class LoraPolicy(Policy):
    """A policy of which a low-rank adapter is trained.

    Args:
        model: From `AutoModelForCausalLM`, with adapter layers in place.
        model_folder: Where its config and tokenizer are copied from.
        adapter: PEFT's configuration of them.
    """

    def __init__(self, model: Any, model_folder: Path, adapter: Any) -> None:
        super().__init__(model, model_folder)
        self._adapter = adapter

    @classmethod
    def put_on(cls, policy: Policy, section: TrainerSection, *, seed: int) -> Self:
        """Put a fresh adapter on a policy; it changes nothing yet.

        Args:
            policy: The starting model; its modules are replaced in place.
            section: Rank, alpha and targets.
            seed: Of the random half; the other is zero.

        Raises:
            ConfigError: PEFT is missing, or a target is not a linear layer of this model.
        """
        require_peft()
        import peft

        check_targets(section, (name for name, _ in policy.model.named_modules()))
        config = peft.LoraConfig(
            r=section.lora_rank,
            lora_alpha=section.lora_alpha,
            target_modules=sorted(section.lora_targets),
            base_model_name_or_path=str(policy.model_folder),
            task_type="CAUSAL_LM",
        )
        torch.manual_seed(seed)
        try:
            model = peft.inject_adapter_in_model(config, policy.model)
        except ValueError as error:
            raise ConfigError(
                f"trainer.lora_targets={list(section.lora_targets)}: {error}",
                hint="name linear layers of the model, such as q_proj or down_proj",
            ) from error
        adapted = cls(model, policy.model_folder, config)
        adapted._check(section)
        logger.info(
            "adapter of rank %d on %d layers: %.2f M parameters are trained",
            section.lora_rank,
            len(adapted._layers()),
            sum(one.numel() for one in adapted.masters().values()) / 1e6,
        )
        return adapted

    def masters(self) -> dict[str, torch.nn.Parameter]:
        """The adapter's weights by sorted name; see `Policy.masters`."""
        return {name: one for name, one in super().masters().items() if one.requires_grad}

    @torch.no_grad()
    def adapter_tensors(self) -> dict[str, Tensor]:
        """The adapter as it is published, float32 in host memory; the scale is in `lora_B`."""
        tensors: dict[str, Tensor] = {}
        for module, layer in self._layers().items():
            low, high = layer.lora_A[_NAME].weight, layer.lora_B[_NAME].weight
            tensors[module + A] = low.detach().to("cpu", torch.float32, copy=True)
            scaled = high.detach() * layer.scaling[_NAME]
            tensors[module + B] = scaled.to("cpu", torch.float32)
        return tensors

    @torch.no_grad()
    def published_tensors(self, dtype: str) -> dict[str, Tensor]:
        """Starting weights plus adapter; see `Policy.published_tensors`."""
        tensors = super().published_tensors(dtype)
        tensors.update(merged(tensors, self.adapter_tensors()))
        return tensors

    def save_hf(self, folder: Path, dtype: str) -> None:
        """Write the merged model, and beside it `adapter`, a folder that PEFT opens."""
        super().save_hf(folder, dtype)
        beside = folder.with_name("adapter")
        beside.mkdir()
        self._adapter.save_pretrained(beside)
        halves = {
            "base_model.model." + name.replace(f".{_NAME}", ""): one.detach().cpu().contiguous()
            for name, one in self.masters().items()
        }
        save_file(halves, beside / "adapter_model.safetensors", metadata={"format": "pt"})

    def _weights(self) -> dict[str, torch.nn.Parameter]:
        return {
            name.replace(".base_layer", ""): one
            for name, one in super().masters().items()
            if ".lora_" not in name
        }

    def _layers(self) -> dict[str, Any]:
        return {
            name: module
            for name, module in sorted(self.model.named_modules())
            if hasattr(module, "lora_A") and _NAME in module.lora_A
        }

    def _check(self, section: TrainerSection) -> None:
        """Only plain linear layers, whose weights are filed under their own names."""
        embedding = self.model.get_input_embeddings().weight
        for name, module in self.model.named_modules():
            inner = getattr(module, "base_layer", None)
            if inner is None or (
                isinstance(inner, torch.nn.Linear) and inner.weight is not embedding
            ):
                continue
            raise ConfigError(
                f"trainer.lora_targets={list(section.lora_targets)} finds {name}, which is no "
                "linear layer of its own",
                hint="name attention and MLP projections, such as q_proj or down_proj",
            )


def load_policy(config: RunConfig, *, device: torch.device | None = None) -> Policy:
    """What a recipe trains: all weights of its model, or an adapter on them.

    Args:
        config: The recipe.
        device: None takes CUDA when there is one.

    Raises:
        ConfigError: See `Policy.load` and `LoraPolicy.put_on`.
    """
    policy = Policy.load(Path(config.model.path), device=device)
    if not config.trainer.lora_rank:
        return policy
    return LoraPolicy.put_on(policy, config.trainer, seed=config.run.seed)
