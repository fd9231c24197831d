"""A Hugging Face causal model that generates, and whose weights are replaced in place."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from consumers.rollout.engines.base import EngineFailed
from consumers.rollout.engines.layout import check_layout, layout_of
from infra.roles.errors import ConfigError
from infra.weights.fingerprint import fingerprint
from infra.weights.prepared import PreparedWeights, ServedWeights


class HfModel:
    """The model and the version that it holds.

    Args:
        folder: In Hugging Face layout, with safetensors weights.
        dtype: Of all weights.
        device: `cpu`, `cuda`, `cuda:1`, ...
        max_model_len: Longest sequence.

    Raises:
        ConfigError: This model cannot be run here.
    """

    def __init__(self, folder: Path, *, dtype: str, device: str, max_model_len: int) -> None:
        transformers_logging.disable_progress_bar()
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        check_config(config.get_text_config(), folder, max_model_len)
        self.network: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=getattr(torch, dtype),
            attn_implementation="sdpa",
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
        )
        self.network.to(device).eval().requires_grad_(False)
        self._parameters = self._untied()
        self.served = ServedWeights(version=-1, fingerprint="")

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""
        return int(self.network.get_input_embeddings().weight.shape[0])

    def check(self, weights: PreparedWeights) -> None:
        """Compare names, shapes and dtypes.

        Raises:
            WeightsRefused: They do not fit.
        """
        check_layout(layout_of(self._parameters), weights)

    def load(self, weights: PreparedWeights) -> None:
        """Copy weights into the parameters, and measure what is there then.

        If the version that they are relative to is served, only what changed is copied.

        Raises:
            WeightsRefused: They do not fit; nothing was touched.
            EngineFailed: They were copied, but other values are there.
        """
        self.check(weights)
        serves_base = weights.base_fingerprint == self.served.fingerprint
        changed = weights.changed if serves_base else None
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                if changed is None or name in changed:
                    parameter.copy_(weights.tensors[name])
        measured = fingerprint(self._parameters)
        if measured != weights.fingerprint:
            raise EngineFailed(
                f"holds fingerprint {measured} after loading version {weights.version}, "
                f"which has {weights.fingerprint}"
            )
        self.served = ServedWeights(version=weights.version, fingerprint=measured)

    def _untied(self) -> dict[str, torch.Tensor]:
        seen: set[int] = set()
        parameters: dict[str, torch.Tensor] = {}
        for name, tensor in self.network.named_parameters():
            if tensor.data_ptr() not in seen:
                seen.add(tensor.data_ptr())
                parameters[name] = tensor
        buffers = dict(self.network.named_buffers())
        for name in self.network.state_dict():
            if name in buffers:
                parameters[name] = buffers[name]
        return parameters


def check_config(config: Any, folder: Path, max_model_len: int) -> None:
    """Refuse models whose attention this engine does not compute.

    Raises:
        ConfigError: With the property that is not supported.
    """
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None and longest < max_model_len:
        raise ConfigError(
            f"the model in {folder} has {longest} positions, the recipe needs {max_model_len}",
            hint="lower rollout.max_prompt_tokens or rollout.max_response_tokens",
        )
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None)
    if "layer_types" not in config.to_dict() and window:
        kinds.add("sliding_attention")
    if window and window >= max_model_len:
        kinds.discard("sliding_attention")
    if kinds - {"full_attention"} or getattr(config, "is_encoder_decoder", False):
        raise ConfigError(
            f"the model in {folder} has {', '.join(sorted(kinds)) or 'an encoder'} "
            f"in a context of {max_model_len}",
            hint="the transformers engine runs full causal attention; use rollout.engine = 'vllm'",
        )
