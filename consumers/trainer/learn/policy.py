"""The policy that is trained: float32 masters of a Hugging Face causal language model."""

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.core_model_loading import revert_weight_conversion

from consumers.trainer.learn.hf_folder import write_hf_folder
from infra.roles.errors import ConfigError

logger = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Policy:
    """A causal language model on the training device, in float32.

    Args:
        model: From `AutoModelForCausalLM`.
        model_folder: Where its config and tokenizer are copied from.
    """

    def __init__(self, model: Any, model_folder: Path) -> None:
        # Dropout would make the new log-probabilities differ from those of the engine.
        self.model = model.eval()
        self.model_folder = model_folder
        self.device: torch.device = model.device
        self.vocab_size: int = model.get_input_embeddings().weight.shape[0]

    @classmethod
    def load(cls, model_folder: Path, *, device: torch.device | None = None) -> Self:
        """Read a Hugging Face folder.

        Args:
            model_folder: config.json and safetensors weights; code in it is never run.
            device: None takes CUDA when there is one.

        Raises:
            ConfigError: The folder cannot be read, or some of the model's weights are not in it.
        """
        _check_folder(model_folder)
        device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            model, report = AutoModelForCausalLM.from_pretrained(
                model_folder,
                dtype=torch.float32,
                use_safetensors=True,
                local_files_only=True,
                output_loading_info=True,
            )
        except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
            raise ConfigError(
                f"model.path={str(model_folder)!r} cannot be loaded: {error}",
                hint="point model.path at a complete Hugging Face folder of a causal language "
                "model that transformers supports without remote code",
            ) from error
        missing = sorted(report["missing_keys"])
        if missing:
            raise ConfigError(
                f"model.path={str(model_folder)!r} lacks {len(missing)} weights: {missing[:5]}",
                hint="they would start at random; copy the complete model",
            )
        for parameter in model.parameters():
            # Loaded weights are views of the mapped file: changed when it is, and aligned as it
            # is, which decides the last bits of matrix products.
            parameter.data = parameter.data.clone()
        policy = cls(model.to(device), model_folder)
        logger.info(
            "policy of %.2f M parameters on %s", model.num_parameters() / 1e6, policy.device
        )
        return policy

    def masters(self) -> dict[str, torch.nn.Parameter]:
        """The float32 weights themselves by sorted name, tied ones once; not copies."""
        return dict(sorted(self.model.named_parameters()))

    @torch.no_grad()
    def load_masters(self, tensors: Mapping[str, Tensor]) -> None:
        """Overwrite the weights in place.

        Raises:
            ValueError: Names or shapes are not this model's.
        """
        masters = self.masters()
        if masters.keys() != tensors.keys():
            unequal = sorted(masters.keys() ^ tensors.keys())
            raise ValueError(f"weights of another model: {len(unequal)} differ, {unequal[:5]}")
        for name, parameter in masters.items():
            if parameter.shape != tensors[name].shape:
                raise ValueError(
                    f"{name} is {tuple(tensors[name].shape)}, not {tuple(parameter.shape)}"
                )
        for name, parameter in masters.items():
            parameter.copy_(tensors[name])

    @torch.no_grad()
    def published_tensors(self, dtype: str) -> dict[str, Tensor]:
        """Detached copies in host memory, by Hugging Face name as on disk, tied ones once.

        Args:
            dtype: `float32` or `bfloat16`.
        """
        wanted = DTYPES[dtype]
        tied = dict(self.model.named_parameters(remove_duplicate=False)).keys()
        buffers = {
            name: tensor.to("cpu", copy=True)
            for name, tensor in self.model.state_dict().items()
            if name not in tied
        }
        weights = {
            name: parameter.detach().to("cpu", wanted, copy=True)
            for name, parameter in self._weights().items()
        }
        on_disk = revert_weight_conversion(self.model, weights | buffers)
        return {name: on_disk[name].contiguous() for name in sorted(on_disk)}

    def adapter_tensors(self) -> dict[str, Tensor] | None:
        """The low-rank adapter that is trained (`infra/weights/adapter.py`); None without one."""
        return None

    def _weights(self) -> dict[str, torch.nn.Parameter]:
        """Every weight by its name in the model, trained or not."""
        return self.masters()

    def save_hf(self, folder: Path, dtype: str) -> None:
        """Write a folder that `AutoModelForCausalLM.from_pretrained` opens."""
        write_hf_folder(folder, self.model_folder, self.published_tensors(dtype), dtype)

    def sha256(self) -> str:
        """Hash of the master weights: name, shape and bytes of each, by sorted name."""
        digest = hashlib.sha256()
        for name, parameter in self.masters().items():
            digest.update(f"{name} {list(parameter.shape)}\n".encode())
            digest.update(parameter.detach().cpu().contiguous().numpy().data)
        return digest.hexdigest()


def _check_folder(model_folder: Path) -> None:
    if not (model_folder / "config.json").is_file():
        raise ConfigError(
            f"model.path={str(model_folder)!r} has no config.json",
            hint="model.path is a local Hugging Face folder; download the model first",
        )
    if not any(model_folder.glob("*.safetensors")):
        raise ConfigError(
            f"model.path={str(model_folder)!r} has no *.safetensors weights",
            hint="other weight files are not read; save the model again with "
            "save_pretrained(..., safe_serialization=True)",
        )
