"""State of the random generators as JSON values."""

import base64
import random
from typing import Any

import numpy as np
import torch


def random_states() -> dict[str, Any]:
    """Of Python, numpy and torch, the CUDA devices included."""
    version, internal, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state()
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {
        "python": [version, list(internal), gauss],
        "numpy": [kind, [int(key) for key in keys], position, has_gauss, cached],
        "torch": _to_text(torch.get_rng_state()),
        "cuda": [_to_text(state) for state in devices],
    }


def set_random_states(states: dict[str, Any]) -> None:
    """Restore what `random_states` gave; CUDA's only where as many devices are present."""
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(_from_text(states["torch"]))
    if states["cuda"] and len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([_from_text(text) for text in states["cuda"]])


def _to_text(state: torch.Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode("ascii")


def _from_text(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
