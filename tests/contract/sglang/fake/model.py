"""The model behind the fake: Hugging Face's, loaded the way SGLang loads."""

import hashlib
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, DynamicCache

FUSED = {
    ".q_proj.": (".qkv_proj.", (".q_proj.", ".k_proj.", ".v_proj.")),
    ".gate_proj.": (".gate_up_proj.", (".gate_proj.", ".up_proj.")),
}


class Model:
    """Weights that can be replaced, and next-token logits."""

    def __init__(self, folder: Path, dtype: str) -> None:
        self.dtype = getattr(torch, dtype)
        self.network = AutoModelForCausalLM.from_pretrained(folder, dtype=self.dtype).eval()
        self.vocab_size = self.network.config.vocab_size
        self.end_id = self.network.config.eos_token_id

    def load(self, folder: Path, *, spare: str = "") -> None:
        """Copy what the files hold and fits; what is missing or of another shape is passed over
        without a word. Raises OSError when there is no such folder."""
        if not folder.is_dir():
            raise OSError(f"no folder {folder}")
        parameters = dict(self.network.named_parameters())
        with torch.no_grad():
            for path in sorted(folder.glob("*.safetensors")):
                for name, tensor in load_file(path).items():
                    known = parameters.get(name)
                    if known is not None and known.shape == tensor.shape and name != spare:
                        known.copy_(tensor)

    def logits(self, tokens: list[int], cache: DynamicCache) -> torch.Tensor:
        """Of the next token, (vocabulary,), float32; the cache takes what it lacks."""
        new = torch.tensor([tokens[cache.get_seq_length() :]])
        with torch.no_grad():
            return self.network(new, past_key_values=cache, use_cache=True).logits[0, -1].float()

    def checksums(self) -> dict[str, str]:
        """By SGLang's names, with its fused parameters."""
        parameters = {name: value.data for name, value in self.network.named_parameters()}
        found = {}
        for name, value in parameters.items():
            for first, (fused, parts) in FUSED.items():
                if first in name:
                    rows = [parameters[name.replace(first, part)] for part in parts]
                    found[name.replace(first, fused)] = torch.cat(rows)
                    break
            else:
                if not any(part in name for _, parts in FUSED.values() for part in parts):
                    found[name] = value
        return {name: _digest(value) for name, value in found.items()}


def _digest(tensor: torch.Tensor) -> str:
    raw = tensor.contiguous().view(torch.uint8).numpy().tobytes()
    return f"{int.from_bytes(hashlib.sha256(raw).digest()[:8], 'big'):016x}"
