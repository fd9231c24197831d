"""What runs inside vLLM's workers: weights replaced in place, and measured by their own names; or,
where they are quantised, given to vLLM's own loader once more.

Imported by vLLM in each worker process before the model is loaded. An extension rather than one
of vLLM's weight transfer engines: those are told in three calls that answer nothing, while here
one call copies between two steps and answers with what is held afterwards.
"""

import logging
import os
import select
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from vllm.config import set_current_vllm_config
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
)
from vllm.platforms import current_platform

from consumers.rollout.engines.vllm.reload import digest, quantised, reload, shared
from consumers.rollout.engines.vllm.setup import OWNER
from consumers.rollout.engines.vllm.shards import Shard, differing, shards_of
from infra.weights.fingerprint import TIED_HEAD, entries_of

logger = logging.getLogger(__name__)


def _plain_linear(layer: torch.nn.Module, remove_weight: bool) -> None:
    """Keep parameters as they are: packed copies could not be replaced, nor tied ones followed."""
    layer.cpu_linear = torch.nn.functional.linear  # type: ignore[assignment]


def _prepare_process() -> None:
    if current_platform.is_cpu():
        import vllm.model_executor.layers.utils as layer_utils

        layer_utils.dispatch_cpu_unquantized_gemm = _plain_linear
        # The first kernel of a short prompt uses AMX tiles without asking the system for them.
        torch.cpu._init_amx()
    owner = int(os.environ[OWNER])
    watch = threading.Thread(target=_end_with, args=(owner,), name="owner-watch", daemon=True)
    watch.start()


def _end_with(owner: int) -> None:
    """Leave when the rollout worker was killed, and take vLLM's engine process along if that is
    another one: both would stay."""
    engine = os.getppid()
    try:
        ended = select.poll()
        ended.register(os.pidfd_open(owner), select.POLLIN)
        ended.poll()
    except ProcessLookupError:
        pass
    if engine != owner and os.getppid() == engine:
        os.kill(engine, signal.SIGKILL)
    os._exit(1)


_prepare_process()


class WarrenWorkerExtension:
    """Mixed into vLLM's worker; called by name through `collective_rpc`, between two steps."""

    model_runner: Any
    model_config: Any
    vllm_config: Any

    def warren_pids(self) -> tuple[int, int]:
        """Of this worker, and of the process that started it."""
        return os.getpid(), os.getppid()

    def warren_layout(self) -> list[tuple[str, str, list[int], int, int, int]]:
        """Name, dtype, shape of the published tensor, and dimension, start and stop of the slice
        that is held here."""
        return [
            (
                shard.name,
                _named(shard.held.dtype),
                list(shard.shape),
                shard.dim,
                shard.start,
                shard.stop,
            )
            for shard in self._warren_shards()
        ]

    def warren_differing(self, paths: list[str]) -> list[str]:
        """Names of which this worker holds other bytes than the files, cast to its dtype."""
        return differing(self._warren_shards(), _mapped(paths))

    def warren_check(
        self,
        paths: list[str],
        layout: dict[str, tuple[str, list[int]]],
        names: list[str] | None,
        cast: bool,
    ) -> str:
        """What is wrong with files that are to be loaded; empty: nothing.

        Args:
            paths: Safetensors files, together one version.
            layout: Dtype and shape of what was published, by name.
            names: Tensors that will be copied; None: all.
            cast: Whether another dtype is converted rather than refused.
        """
        try:
            published = _mapped(paths)
        except (OSError, SafetensorError) as error:
            return f"the files cannot be read: {error}"
        wrong = [
            name
            for name in (layout if names is None else names)
            if (given := published.get(name)) is None
            or list(given.shape) != list(layout[name][1])
            or (_named(given.dtype) != layout[name][0] and not cast)
        ]
        wrong += published.keys() - layout.keys() - {TIED_HEAD}
        return f"the files do not fit: {', '.join(sorted(wrong)[:5])}" if wrong else ""

    def warren_load(self, paths: list[str], names: list[str] | None) -> dict[str, Any]:
        """Copy checked files into the parameters, and measure what is there then.

        Returns:
            `entries` of the tensors of which this worker has to say them: those that it holds
            whole, as it holds them, and its share of those that several hold in slices, as they
            are in the files; `differing`: names of slices that are not those of the files.
        """
        published = _mapped(paths)
        shards = _chosen(self._warren_shards(), names)
        with torch.no_grad():
            for shard in shards:
                shard.held.copy_(shard.of(published[shard.name]))
        return _measured(shards, published)

    def warren_formats(self, paths: list[str], dtype: str) -> list[tuple[str, str, list[int]]]:
        """Name, dtype and shape of what is loaded from files, and of every version after them.

        Args:
            paths: Safetensors files of a model folder.
            dtype: That floating-point tensors are converted to.
        """
        leaving = shared(self.model_runner.get_model())
        return [
            (name, _named(tensor.dtype), list(tensor.shape))
            for name, tensor in _converted(_mapped(paths), dtype).items()
            if name not in leaving
        ]

    def warren_quantised(self) -> list[str]:
        """Layers that hold something else than what was published."""
        return quantised(self.model_runner.get_model())

    def warren_digest(self) -> str:
        """Of what this worker holds, in whatever form."""
        return digest(self.model_runner.get_model())

    def warren_reload(self, paths: list[str], dtype: str) -> dict[str, Any]:
        """Let vLLM load checked files once more, and measure what it was given and what it holds.

        Args:
            paths: Safetensors files, together one version.
            dtype: That floating-point tensors are converted to.

        Returns:
            `entries` of the tensors of which this worker has to say them; `missing`: names of
            parameters that were left as they were; `held`: as `warren_digest`.
        """
        given = _converted(_mapped(paths), dtype)
        model = self.model_runner.get_model()
        with set_current_vllm_config(self.vllm_config):
            missing = reload(model, self.model_config, given.items())
        rank, size = get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size()
        said = {name: given[name] for name in sorted(given)[rank::size]}
        return {"entries": entries_of(said), "missing": missing, "held": digest(model)}

    def _warren_shards(self) -> list[Shard]:
        return list(shards_of(self.model_runner.get_model()))


def _mapped(paths: list[str]) -> dict[str, torch.Tensor]:
    """Views on the files themselves: their pages are shared with who else maps them."""
    published: dict[str, torch.Tensor] = {}
    for path in paths:
        with safe_open(Path(path), framework="pt") as file:
            published.update({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    return published


def _converted(published: dict[str, torch.Tensor], dtype: str) -> dict[str, torch.Tensor]:
    target = getattr(torch, dtype)
    return {
        name: tensor.to(target) if tensor.is_floating_point() else tensor
        for name, tensor in published.items()
    }


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _chosen(shards: list[Shard], names: list[str] | None) -> list[Shard]:
    if names is None:
        return shards
    wanted = set(names)
    return [shard for shard in shards if shard.name in wanted]


def _measured(shards: list[Shard], published: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    sliced = [shard for shard in shards if not shard.whole]
    rank, size = get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size()
    said = {shard.name: shard.held for shard in shards if shard.whole}
    said |= {shard.name: published[shard.name].to(shard.held.dtype) for shard in sliced[rank::size]}
    return {"entries": entries_of(said), "differing": differing(sliced, published)}
