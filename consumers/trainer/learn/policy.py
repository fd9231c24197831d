"""The policy that is trained: float32 masters of a Hugging Face causal language model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Self

import torch


class Policy:
    """A causal language model on the training device, in float32."""

    model_folder: Path
    device: torch.device
    vocab_size: int

    @classmethod
    def load(cls, model_folder: Path, *, device: torch.device | None = None) -> Self:
        """Read a Hugging Face folder. Raises ConfigError: unreadable, or weights are missing."""
        raise NotImplementedError

    def masters(self) -> dict[str, torch.Tensor]:
        """The float32 weights themselves by sorted name, tied ones once; not copies."""
        raise NotImplementedError

    def load_masters(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Overwrite the weights in place."""
        raise NotImplementedError

    def published_tensors(self, dtype: str) -> dict[str, torch.Tensor]:
        """Detached copies in host memory, in `dtype`, by Hugging Face name, tied ones once."""
        raise NotImplementedError

    def save_hf(self, folder: Path, dtype: str) -> None:
        """Write a folder that `AutoModelForCausalLM.from_pretrained` opens."""
        raise NotImplementedError

    def sha256(self) -> str:
        """Hash of the master weights by sorted name."""
        raise NotImplementedError
