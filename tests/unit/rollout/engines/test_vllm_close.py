"""Closing an engine whose process does not answer; vLLM itself is not needed."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from consumers.rollout import worker
from consumers.rollout.engines.vllm import engine as vllm
from consumers.rollout.engines.vllm.engine import VllmEngine


class Hung:
    """An engine that hears no abort."""

    errored = False

    def __init__(self) -> None:
        self.ended = False

    async def abort(self, turns: Any, *, internal: bool) -> None:
        await asyncio.Event().wait()

    def shutdown(self, timeout: float) -> None:
        self.ended = True


async def test_one_that_hangs_is_ended_within_a_workers_patience(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert vllm._ABORT_S < worker._CLOSE_S / 2
    monkeypatch.setattr(vllm, "_ABORT_S", 0.01)
    engine = VllmEngine(
        model_folder=tmp_path, dtype="float32", slots=1, max_model_len=8, options={}
    )
    hung = Hung()
    engine._engine = hung
    engine._turns = {"r": SimpleNamespace(internal_id="r-1")}  # type: ignore[dict-item]
    async with asyncio.timeout(20):
        await engine.close()
    assert hung.ended
