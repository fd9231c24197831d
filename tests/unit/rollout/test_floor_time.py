"""Timers that stand still, waits that are named, and an engine that is not believed."""

from pathlib import Path

import pytest

from consumers.rollout.agents.state import CutReason
from consumers.rollout.delivery import outbox
from consumers.rollout.engines.base import EngineFailed
from infra.amqp.errors import Unroutable
from infra.observe.waits import Waits
from infra.roles.errors import DeadlinePassed
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


async def test_a_version_that_does_not_come_is_named_and_past_its_deadline_stops_the_worker(
    tmp_path: Path,
) -> None:
    async with Bench(tmp_path, limits={"stall_s": 0.05}) as bench:
        waits = Waits(warn_after_s=0.01, on_deadline="stop")
        bench.floor.sweep._waits = waits
        bench.broker.put("prompts", task(0), min_version=7)
        wanted = "version 7: 1 rollouts need it, version 0 is served"
        await bench.until(lambda: waits.current()[0] == wanted)
        ended = bench.loops[2]
        await bench.until(ended.done)
        with pytest.raises(DeadlinePassed, match=wanted) as passed:
            ended.result()
        assert passed.value.exit_code == 5
        bench.loops.remove(ended)


@pytest.mark.parametrize(("hold", "ends"), [("weights", True), ("paused", False)])
async def test_admission_has_a_deadline_unless_the_operator_holds_it(
    tmp_path: Path, hold: str, ends: bool
) -> None:
    async with Bench(tmp_path, limits={"stall_s": 0.02}) as bench:
        waits = Waits(warn_after_s=0.01, on_deadline="stop")
        bench.floor.intake._waits = waits
        bench.floor.holds.put(hold, "a reason")
        await bench.until(lambda: waits.current()[0] == "admission: a reason")
        intake = bench.loops[0]
        if ends:
            await bench.until(intake.done)
            with pytest.raises(DeadlinePassed, match="admission: a reason"):
                intake.result()
            bench.loops.remove(intake)
        else:
            await bench.until(lambda: waits.current()[1] > 0.1)
            assert not intake.done()


async def test_a_message_that_no_queue_takes_is_unconfirmed_when_the_patience_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "_UNROUTABLE_PAUSE_S", 0.01)
    async with Bench(tmp_path, limits={"confirm_patience_s": 0.05}) as bench:
        publish, unroutable = bench.broker.publish, True

        async def lost(message, *, timeout_s=None):  # type: ignore[no-untyped-def]
            if unroutable:
                raise Unroutable("no queue takes work / cancelled")
            await publish(message, timeout_s=timeout_s)

        monkeypatch.setattr(bench.broker, "publish", lost)
        bench.engine.hold_at = 3
        bench.broker.put("prompts", task(0))
        await bench.until(lambda: bool(bench.engine.running))
        await bench.floor.runner.cut(bench.floor.slots, CutReason.INTERVAL)
        await bench.until(lambda: bench.floor.counters.unconfirmed_cuts == 1)
        unroutable = False
        bench.engine.release()
        await bench.until(lambda: len(bench.broker.queues["rollouts"]) == 1)


async def test_the_heartbeat_tells_what_a_kill_would_cost(tmp_path: Path) -> None:
    async with Bench(tmp_path, limits={"confirm_patience_s": 0.02}) as bench:
        bench.engine.hold_at = 3
        for group in range(2):
            bench.broker.put("prompts", task(group))
        await bench.until(lambda: bench.floor.describe()["tokens_unsaved"] == 6)
        bench.broker.confirming.clear()
        await bench.floor.runner.cut(bench.floor.slots, CutReason.INTERVAL)
        await bench.until(lambda: bench.floor.counters.unconfirmed_cuts == 2)
        assert bench.floor.describe()["tokens_unsaved"] == 6, "the broker has none of it"
        assert bench.floor.describe()["counters"]["tokens_generated"] == 6
        bench.engine.num_cached = 1
        bench.engine.release(5)
        await bench.until(lambda: bench.floor.describe()["tokens_unsaved"] == 10)
        bench.broker.confirming.set()
        bench.broker.giving = False
        await bench.floor.runner.cut(bench.floor.slots, CutReason.INTERVAL)
        await bench.until(lambda: len(bench.broker.queues["cancel_queue"]) == 2)
        assert bench.floor.describe()["tokens_unsaved"] == 0
        counters = bench.floor.describe()["counters"]
        assert counters["tokens_generated"] == 10
        assert counters["tokens_prefilled"] == 2 * (3 + 5), "the prompt; the rest but the cached"
        assert (counters["tokens_cached"], counters["tokens_reprefilled"]) == (2, 2 * 4)
