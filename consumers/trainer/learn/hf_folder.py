"""A Hugging Face folder of the current weights, for engines and other tools."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

COPIED_SUFFIXES = frozenset({".json", ".txt", ".jinja", ".model", ".tiktoken"})
"""Tokenizer, chat template, generation config: never weights, never code."""


def write_hf_folder(
    folder: Path, model_folder: Path, tensors: Mapping[str, Tensor], dtype: str
) -> None:
    """Write weights and config in `dtype`, and copy everything else from `model_folder`.

    Args:
        folder: Created; must not exist.
        model_folder: The starting model's.
        tensors: By Hugging Face name, in host memory, contiguous, tied ones once.
        dtype: Their name for config.json.
    """
    folder.mkdir(parents=True)
    for source in sorted(model_folder.iterdir()):
        if (
            source.is_file()
            and source.suffix in COPIED_SUFFIXES
            and source.name != "config.json"
            and not source.name.endswith(".index.json")
        ):
            shutil.copyfile(source, folder / source.name)
    config = json.loads((model_folder / "config.json").read_text(encoding="utf-8"))
    config["torch_dtype" if "torch_dtype" in config else "dtype"] = dtype
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
