"""A fake server from the arguments of a real one."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.contract.sglang.fake.app import App
from tests.contract.sglang.fake.model import Model
from tests.contract.sglang.fake.quirks import Quirks
from tests.contract.sglang.fake.scheduler import Scheduler

VERSION = "0.5.23"


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    """Those of SGLang's arguments that the fake knows."""
    parser = argparse.ArgumentParser("fake SGLang server")
    parser.add_argument("--model-path", type=Path, required=True)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--weight-version", default="default")
    parser.add_argument("--context-length", type=int, default=264)
    parser.add_argument("--max-running-requests", type=int, default=8)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--stream-interval", type=int, default=1)
    parser.add_argument("--sampling-mask-max-tokens", type=int, default=4096)
    parser.add_argument("--api-key", default="")
    parser.add_argument("--admin-api-key", default="")
    for flag in (
        "--skip-tokenizer-init",
        "--skip-server-warmup",
        "--incremental-streaming-output",
        "--enable-deterministic-inference",
    ):
        parser.add_argument(flag, action="store_true")
    return parser.parse_args(argv)


def build(argv: Sequence[str], *, quirks: Quirks, die: Callable[[], None]) -> App:
    """A server that is not listening yet."""
    given = parsed(argv)
    scheduler = Scheduler(
        Model(given.model_path, given.dtype),
        slots=given.max_running_requests,
        version=given.weight_version,
        delta=given.incremental_streaming_output,
        seeded=given.enable_deterministic_inference,
        stream_interval=given.stream_interval,
        quirks=quirks,
        die=die,
    )
    return App(
        scheduler,
        context=given.context_length,
        info=_info(given),
        api_key=given.api_key,
        admin_key=given.admin_api_key,
    )


def _info(given: argparse.Namespace) -> dict[str, Any]:
    return {
        "version": VERSION,
        "frontend": "python",
        "device": "cpu",
        "model_path": str(given.model_path),
        "dtype": given.dtype,
        "context_length": given.context_length,
        "max_req_input_len": given.context_length - 6,
        "max_running_requests": given.max_running_requests,
        "max_total_num_tokens": 8192,
        "skip_tokenizer_init": given.skip_tokenizer_init,
        "incremental_streaming_output": given.incremental_streaming_output,
        "stream_interval": given.stream_interval,
        "weight_version": given.weight_version,
        "enable_deterministic_inference": given.enable_deterministic_inference,
        "sampling_mask_max_tokens": given.sampling_mask_max_tokens,
        "tp_size": 1,
        "dp_size": 1,
        "pp_size": 1,
        "tokenizer_worker_num": 1,
        "disaggregation_mode": "null",
        "speculative_algorithm": None,
        "quantization": None,
        "preferred_sampling_params": None,
        "enable_lora": None,
        "startup_time": {"tokenizer_e2e": 1.0},
    }
