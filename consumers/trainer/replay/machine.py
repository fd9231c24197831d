"""What the last bits of a step may depend on: the machine, and the torch on it."""

import functools
from pathlib import Path

import torch

from schemas.journal import RanOn

_CPUINFO = Path("/proc/cpuinfo")


def ran_on(device: torch.device) -> RanOn:
    """This process, when it computes on `device`."""
    accelerator = device.type == "cuda"
    return RanOn(
        torch=torch.__version__,
        device=torch.cuda.get_device_name(device) if accelerator else device.type,
        num_threads=torch.get_num_threads(),
        cpu=f"{_model_name()}, {torch.backends.cpu.get_cpu_capability()}",
    )


def be_like(recorded: RanOn | None) -> torch.device | None:
    """Set this process up as the one that computed a step, as far as it can be.

    Returns:
        The device to compute on; None leaves the choice.
    """
    if recorded is None:
        return None
    torch.set_num_threads(max(recorded.num_threads, 1))
    return torch.device("cpu") if recorded.device == "cpu" else None


@functools.cache
def _model_name() -> str:
    try:
        lines = _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "unknown CPU"
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "unknown CPU")
