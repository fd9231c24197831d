"""Timers that stand still, waits that are named, and an engine that is not believed."""

from pathlib import Path

import pytest

from consumers.rollout import sweep
from consumers.rollout.engines.base import EngineFailed
from infra.weights.prepared import ServedWeights
from tests.unit.rollout.worker_fakes import Bench, task


async def test_ages_stand_still_while_blocked_swapping_or_disconnected(tmp_path: Path) -> None:
    async with Bench(tmp_path, limits={"sweep_s": 1000.0}) as bench:
        bench.engine.hold_at = 2
        bench.broker.put("prompts", task(0))
        await bench.until(lambda: len(bench.floor.slots) == 1)
        (held,) = bench.floor.slots
        await bench.floor.sweep.once(1.0)
        assert held.age_s == 1.0
        bench.broker.blocked = True
        await bench.floor.sweep.once(1.0)
        bench.broker.blocked = False
        bench.floor.gate.close()
        await bench.floor.sweep.once(1.0)
        bench.floor.gate.open()
        bench.broker.connected = False
        await bench.floor.sweep.once(1.0)
        bench.broker.connected = True
        assert held.age_s == 1.0
        await bench.floor.sweep.once(0.5)
        assert held.age_s == 1.5


async def test_an_orphan_is_not_given_up_while_the_broker_is_away(tmp_path: Path) -> None:
    limits = {"sweep_s": 1000.0, "readopt_s": 2.0}
    async with Bench(tmp_path, limits=limits) as bench:
        bench.engine.hold_at = 2
        bench.broker.put("prompts", task(0))
        await bench.until(lambda: bool(bench.engine.running))
        bench.broker.giving = False
        bench.broker.connected = False
        bench.broker.lose_deliveries()
        for _ in range(5):
            await bench.floor.sweep.once(1.0)
        assert len(bench.floor.slots) == 1
        bench.broker.connected = True
        for _ in range(3):
            await bench.floor.sweep.once(1.0)
        assert len(bench.floor.slots) == 0


async def test_confirms_that_do_not_come_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "_NAMED_AFTER_S", 0.01)
    async with Bench(tmp_path, slots=1) as bench:
        bench.broker.confirming.clear()
        bench.broker.blocked = True
        bench.broker.put("prompts", task(0))
        await bench.until(lambda: "confirm 1 messages" in bench.context.waits.current()[0])
        assert "it has an alarm" in bench.context.waits.current()[0]
        bench.broker.blocked = False
        bench.broker.confirming.set()
        await bench.until(lambda: "confirm" not in bench.context.waits.current()[0])


async def test_an_engine_that_serves_something_else_is_not_used(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        bench.engine.serving = lambda: ServedWeights(  # type: ignore[method-assign]
            version=bench.engine.version, fingerprint="print-of-something-else"
        )
        sync = bench.loops[1]
        bench.publish(1)
        await bench.until(sync.done)
        with pytest.raises(EngineFailed, match="print-of-something-else"):
            sync.result()
        bench.loops.remove(sync)


async def test_the_swap_is_counted_and_timed(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        bench.publish(1)
        await bench.until(lambda: bench.floor.counters.swaps == 1)
        assert bench.floor.describe()["counters"]["swap_s"] > 0
        assert bench.floor.describe()["version"] == 1
