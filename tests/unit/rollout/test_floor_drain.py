"""Draining: turns end before the weights come, up to a deadline."""

import logging
from pathlib import Path

import pytest

from schemas.headers import Purpose
from tests.unit.rollout.worker_fakes import Bench, hold, task


async def test_drain_waits_for_turns_and_swaps_after_them(tmp_path: Path) -> None:
    async with Bench(tmp_path, on_sync="drain") as bench:
        bench.broker.put("prompts", task(0))
        await hold(bench, at=4, rollouts=1)
        bench.publish(1)
        await bench.until(lambda: bench.floor.swap.swapping)
        assert bench.floor.swap.version == 0
        bench.engine.release()
        await bench.until(lambda: bench.floor.swap.version == 1)
        (rollout,) = bench.broker.bodies("rollouts")
        assert rollout.progress.tokens.versions == ((-1, 3), (0, 8))


async def test_drain_cuts_what_outlasts_its_deadline_and_says_how_many(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Bench(
        tmp_path, slots=3, on_sync="drain", limits={"drain_deadline_s": 0.02}
    ) as bench:
        bench.broker.put("eval_prompts", task(0, purpose=Purpose.EVAL))
        bench.broker.put("prompts", task(0, 0))
        bench.broker.put("prompts", task(0, 1))
        await hold(bench, at=4, rollouts=3)
        with caplog.at_level(logging.WARNING):
            bench.publish(1)
            await bench.until(lambda: bench.floor.swap.version == 1)
        assert "3 rollouts still generate after 0.02 s" in caplog.text
        assert "2 are cut, 1 go on under version 1" in caplog.text
        for name in ("0.0", "0.1"):
            assert ("publish", "cancel_queue", name) in bench.broker.log
