"""What runs inside vLLM's worker: weights replaced in place, and measured by their own names.

Imported by vLLM in its engine process before the model is loaded. Fused parameters (qkv,
gate_up) are cut into views under Hugging Face names, so that loading is a copy and the
fingerprint of what is served is comparable with what was published.
"""

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from vllm.platforms import current_platform

from infra.weights import tensor_file
from infra.weights.errors import WeightsCorrupt
from infra.weights.fingerprint import TIED_HEAD, fingerprint

logger = logging.getLogger(__name__)

_PARENT_CHECK_S = 1.0


def _plain_linear(layer: torch.nn.Module, remove_weight: bool) -> None:
    """Keep parameters as they are: packed copies could not be replaced, nor tied ones followed."""
    layer.cpu_linear = torch.nn.functional.linear  # type: ignore[assignment]


def _prepare_process() -> None:
    if current_platform.is_cpu():
        import vllm.model_executor.layers.utils as layer_utils

        layer_utils.dispatch_cpu_unquantized_gemm = _plain_linear
        # The first kernel of a short prompt uses AMX tiles without asking the system for them.
        torch.cpu._init_amx()
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    if threading.current_thread() is threading.main_thread():
        # Ctrl-C reaches the whole group; the rollout worker hands over first, then closes us.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), name="parent-watch", daemon=True).start()


def _end_with(parent: Any) -> None:
    """Leave when the parent was killed: vLLM's engine process would stay."""
    while parent.is_alive() and os.getppid() == parent.pid:
        parent.join(_PARENT_CHECK_S)
    os._exit(1)


_prepare_process()


class WarrenWorkerExtension:
    """Mixed into vLLM's worker; called by name through `collective_rpc`, between two steps."""

    model_runner: Any

    def warren_layout(self) -> list[tuple[str, str, list[int]]]:
        """Name, dtype and shape of every tensor that is served, by Hugging Face name."""
        return [
            (name, str(view.dtype).removeprefix("torch."), list(view.shape))
            for name, view in self._warren_views().items()
        ]

    def warren_fingerprint(self) -> str:
        """Of what is served now."""
        return fingerprint(self._warren_views())

    def warren_load(self, paths: list[str], cast: bool) -> dict[str, str]:
        """Copy files into the parameters.

        Args:
            paths: Safetensors files, together one version.
            cast: Whether another dtype is converted rather than refused.

        Returns:
            `fingerprint`, measured afterwards; or `refused`, and nothing was touched.
        """
        tensors: dict[str, torch.Tensor] = {}
        try:
            for path in paths:
                tensors.update(tensor_file.read(Path(path)))
        except WeightsCorrupt as error:
            return {"refused": str(error)}
        views = self._warren_views()
        unknown = tensors.keys() - views.keys() - {TIED_HEAD}
        wrong = [
            name
            for name, view in views.items()
            if name not in tensors
            or tensors[name].shape != view.shape
            or (tensors[name].dtype != view.dtype and not cast)
        ]
        if unknown or wrong:
            return {"refused": f"the files do not fit: {sorted([*unknown, *wrong])[:5]}"}
        with torch.no_grad():
            for name, view in views.items():
                view.copy_(tensors[name])
        return {"fingerprint": fingerprint(views)}

    def _warren_views(self) -> dict[str, torch.Tensor]:
        return dict(hugging_face_views(self.model_runner.get_model()))


def hugging_face_views(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Every parameter under its Hugging Face name, fused ones in parts; all are views."""
    fused: dict[str, list[str]] = getattr(model, "packed_modules_mapping", {})
    for name, parameter in model.named_parameters():
        module_name, _, leaf = name.rpartition(".")
        prefix, _, module_leaf = module_name.rpartition(".")
        module = model.get_submodule(module_name)
        parts = fused.get(module_leaf, [])
        sizes = getattr(module, "output_sizes", None)
        if len(parts) > 1 and sizes is not None and len(sizes) == len(parts):
            begin = 0
            for part, size in zip(parts, sizes, strict=True):
                yield f"{prefix}.{part}.{leaf}", parameter.data[begin : begin + size]
                begin += size
        elif hasattr(module, "org_vocab_size"):
            yield name, parameter.data[: module.org_vocab_size]
        else:
            yield name, parameter.data
