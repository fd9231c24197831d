"""A real SGLang server on a CPU, in an environment of its own."""

import os
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from consumers.rollout.engines.sglang.engine import SglangEngine

PYTHON = "WARREN_SGLANG_PYTHON"
"""Environment variable: the interpreter of an environment that has SGLang; `make sglang-cpu`."""

WITH_SERVER = pytest.mark.skipif(
    not os.environ.get(PYTHON), reason=f"needs SGLang: make test-sglang, or set {PYTHON}"
)

ENVIRONMENT = {
    "PYTHONPATH": str(Path(__file__).with_name("cpu")),
    "SGLANG_USE_CPU_ENGINE": "1",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",  # penalties would be compiled at their first use, for a minute
}
ARGUMENTS = [
    *("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
    *("--disable-cuda-graph", "--max-total-tokens", "20000", "--sleep-on-idle"),
]
_FREE_S = 20.0


def cpu_server(
    *, model_folder: Path, dtype: str, slots: int, max_model_len: int, seeded: bool, **options: Any
) -> SglangEngine:
    """An engine whose server is going to run here."""
    seeds = ["--enable-deterministic-inference"] if seeded else []
    return SglangEngine(
        model_folder=model_folder,
        dtype=dtype,
        slots=slots,
        max_model_len=max_model_len,
        options={
            "python": os.environ[PYTHON],
            "environment": ENVIRONMENT,
            "arguments": ARGUMENTS + seeds,
            "start_timeout": 300,
            **options,
        },
        log=model_folder.parent / "sglang.log",
    )


def unfinished_at_server(url: str) -> int:
    """Requests that a server runs or has queued, once it had time to forget them."""
    deadline = time.monotonic() + _FREE_S
    while True:
        (load,) = httpx.get(f"{url}/v1/loads?include=core").json()["loads"]
        count = int(load["num_running_reqs"] + load["num_waiting_reqs"])
        if not count or time.monotonic() > deadline:
            return count
        time.sleep(0.1)
