"""Silence of the trainer: named, and answered by listening anew and reading the store."""

import asyncio
from pathlib import Path

import pytest

from infra.roles import control
from infra.roles.control import watch_silence
from infra.runs.folder import RunFolder
from infra.weights.errors import StoreFailed
from schemas.config import RunConfig
from schemas.control import RunState, WeightsPublished
from tests.factories.contexts import role_context
from tests.factories.published import NO_WEIGHTS

CONFIG = {
    "run": {"name": "t", "steps": 1},
    "model": {"path": "m"},
    "data": {"train": [{"path": "d.jsonl"}]},
    "reward": {"functions": [{"use": "exact"}]},
    "trainer": {"lr": 0.1},
}


class Rebuilt:
    """A broker that tells when its control connection is made anew."""

    def __init__(self) -> None:
        self.rebuilt = asyncio.Event()

    def rebuild_control(self) -> None:
        self.rebuilt.set()


async def test_who_hears_nothing_rebuilds_reads_the_store_and_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    missed = WeightsPublished(
        run_id="a", version=3, incarnation=1, step=3, folder="v3", full=NO_WEIGHTS, fingerprint="f"
    )

    failures = [StoreFailed("cannot read the weight store: Stale file handle")]

    async def newest(*_: object) -> WeightsPublished:
        if failures:
            raise failures.pop()
        return missed

    caplog.set_level("INFO")
    monkeypatch.setattr(control, "SILENCE_S", 0.02)
    monkeypatch.setattr(control, "_CATCH_UP_S", 0.0)
    monkeypatch.setattr(control, "newest_manifest", newest)
    broker = Rebuilt()
    config = RunConfig.model_validate(CONFIG)
    context = role_context(config, broker, folder=RunFolder(tmp_path), run_id="a")
    heard: asyncio.Queue[WeightsPublished] = asyncio.Queue()
    context.on_weights(heard.put_nowait)
    watcher = asyncio.create_task(watch_silence(context))
    await broker.rebuilt.wait()
    assert await heard.get() == missed
    assert context.waits.current()[0] == "word from the trainer"
    context.hear_run_state(RunState(run_id="a", number=1))
    while "the trainer is heard again" not in caplog.text:
        await asyncio.sleep(0.001)
    watcher.cancel()
    assert "no word from the trainer" in caplog.text
    assert "cannot read the weight store: Stale file handle" in caplog.text
