"""The SGLang engine with the fake server in the place of the real one."""

import sys
from pathlib import Path
from typing import Any

from consumers.rollout.engines.sglang.engine import SglangEngine

COMMAND = [sys.executable, "-m", "tests.contract.sglang.fake"]
ENVIRONMENT = {"PYTHONPATH": str(Path(__file__).parents[3])}


def fake_server(
    *, model_folder: Path, dtype: str, slots: int, max_model_len: int, **options: Any
) -> SglangEngine:
    """An engine whose fake server is going to run in a process of its own."""
    return SglangEngine(
        model_folder=model_folder,
        dtype=dtype,
        slots=slots,
        max_model_len=max_model_len,
        options={
            "command": COMMAND,
            "environment": ENVIRONMENT,
            "arguments": ["--enable-deterministic-inference"],
            "start_timeout": 60,
            **options,
        },
        log=model_folder.parent / "sglang.log",
    )
