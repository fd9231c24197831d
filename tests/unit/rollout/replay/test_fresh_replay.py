"""`replay rollout --fresh` around its engine: what was generated outlives a bad end of it."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from consumers.rollout.replay import fresh
from infra.weights.prepared import PreparedWeights
from schemas.config import RunConfig
from tests.factories.agent_runs import OPENING
from tests.factories.rollouts import ScriptedEngine, chatml_folder, make_task, talk


class NeverEnds(ScriptedEngine):
    """Generates, and does not close."""

    async def start(self, weights: Any) -> None:
        """Nothing is served."""

    async def close(self) -> None:
        await asyncio.Event().wait()


async def test_what_was_generated_outlives_an_engine_that_does_not_end(
    renderer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chatml_folder(tmp_path / "model")
    config = RunConfig.model_validate(
        {
            "run": {"name": "mine", "steps": 9},
            "model": {"path": str(tmp_path / "model")},
            "data": {"train": [{"path": "t.jsonl"}]},
            "reward": {"functions": [{"use": "exact_match"}]},
            "trainer": {"lr": 1e-3},
        }
    )
    script = talk(renderer, ["seven<|im_end|>"], opening=OPENING)
    monkeypatch.setattr(fresh, "build_engine", lambda _config: NeverEnds(script))
    monkeypatch.setattr(fresh, "_CLOSE_S", 0.01)
    rollout = await fresh.generate(config, cast("PreparedWeights", None), make_task())
    assert rollout.progress.messages[-1].content == "seven"
