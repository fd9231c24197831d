"""Rollouts that do not move are handed over; an engine that does not move ends its worker."""

import asyncio
from pathlib import Path

import pytest

from consumers.rollout.counters import Counters
from consumers.rollout.delivery.poison import Returns
from consumers.rollout.engines.base import EngineFailed
from consumers.rollout.slots import Held
from consumers.rollout.stalls import StallWatch
from consumers.rollout.tools.tool import tool
from schemas.control import RunState, Wanted
from schemas.headers import Headers
from schemas.work import FailureKind
from tests.unit.rollout.worker_fakes import RUN_ID, Bench, task

LIMITS = {"sweep_s": 1000.0, "stall_timeout_s": 10.0}


async def generating(bench: Bench, number: int = 1, *, tokens: int = 2) -> None:
    await bench.until(
        lambda: (
            sum(
                held.state is not None and held.state.num_new_tokens == tokens
                for held in bench.floor.slots
            )
            == number
        ),
        f"{number} at {tokens} tokens",
    )


async def test_what_gains_no_token_for_the_timeout_is_handed_over(tmp_path: Path) -> None:
    async with Bench(tmp_path, limits=LIMITS) as bench:
        bench.engine.hold_at = 2
        bench.broker.put("prompts", task(0), returns=2, returns_total=2)
        await generating(bench)
        bench.broker.giving = False
        await bench.floor.sweep.once(100.0)
        await bench.floor.sweep.once(9.0)
        assert not bench.broker.queues["cancel_queue"], "it moved before the first look"
        await bench.floor.sweep.once(1.0)
        await bench.until(lambda: bool(bench.broker.queues["cancel_queue"]))
        (snapshot,) = bench.broker.bodies("cancel_queue")
        (headers,) = bench.broker.headers("cancel_queue")
        assert [one.reason for one in snapshot.progress.interruptions] == ["stall"]
        assert (headers.returns, headers.returns_total) == (1, 3), "its tokens excuse nothing"
        assert bench.floor.counters.stalled == 1
        assert not bench.broker.unacked


async def test_a_token_starts_the_clock_again(tmp_path: Path) -> None:
    async with Bench(tmp_path, limits=LIMITS) as bench:
        bench.engine.hold_at = 2
        bench.broker.put("prompts", task(0))
        await generating(bench, tokens=2)
        await bench.floor.sweep.once(0.0)
        await bench.floor.sweep.once(9.0)
        bench.engine.release(3)
        await generating(bench, tokens=3)
        await bench.floor.sweep.once(9.0)
        await bench.floor.sweep.once(9.0)
        await asyncio.sleep(0.01)
        assert not bench.broker.queues["cancel_queue"]
        assert len(bench.engine.running) == 1


@pytest.mark.parametrize("why", ["paused", "swapping", "blocked", "away"])
async def test_the_clock_stands_still(tmp_path: Path, why: str) -> None:
    async with Bench(tmp_path, limits=LIMITS) as bench:
        bench.engine.hold_at = 2
        bench.broker.put("prompts", task(0))
        await generating(bench)
        await bench.floor.sweep.once(0.0)
        if why == "paused":
            bench.floor.hear_run_state(
                RunState(run_id=RUN_ID, number=1, version=0, wanted=Wanted.PAUSED)
            )
        elif why == "swapping":
            bench.floor.gate.close()
        elif why == "blocked":
            bench.broker.blocked = True
        else:
            bench.broker.connected = False
        for _ in range(5):
            await bench.floor.sweep.once(10.0)
        await asyncio.sleep(0.01)
        assert bench.floor.counters.stalled == 0
        assert len(bench.engine.running) == 1


async def test_a_tool_within_its_limit_is_no_stall(tmp_path: Path) -> None:
    started = asyncio.Event()

    async def ponder() -> str:
        """Think for ever."""
        started.set()
        await asyncio.Event().wait()
        return ""

    bench = Bench(tmp_path, limits=LIMITS)
    bench.tools = {"ponder": tool(timeout_s=50.0)(ponder)}
    async with bench:
        work = task(0).model_copy(update={"agent": "tool", "tools": ("ponder",)})
        bench.broker.put("prompts", work)
        await started.wait()
        await bench.floor.sweep.once(0.0)
        await bench.floor.sweep.once(59.0)
        assert bench.floor.counters.stalled == 0, "its limit and the timeout are not over"
        bench.broker.giving = False
        await bench.floor.sweep.once(1.0)
        await bench.until(lambda: bool(bench.broker.queues["cancel_queue"]))
        (snapshot,) = bench.broker.bodies("cancel_queue")
        assert len(snapshot.pending_calls) == 1, "it may run again elsewhere"


async def test_handed_over_too_often_it_is_a_data_failure_that_names_the_stall(
    tmp_path: Path,
) -> None:
    async with Bench(tmp_path, limits=LIMITS) as bench:
        bench.engine.hold_at = 0
        bench.broker.put("prompts", task(0), returns=6, returns_total=6)
        await bench.until(lambda: bool(bench.engine.running))
        await bench.floor.sweep.once(0.0)
        await bench.floor.sweep.once(10.0)
        await bench.until(lambda: bool(bench.broker.dead))
        (failure,) = bench.broker.dead
        assert "stalled: no token" in failure.error
        assert "it came back 6 times before" in failure.error
        assert (failure.stage, failure.kind) == ("rollout", FailureKind.DATA)
        assert (failure.returns, failure.data_attempts, failure.attempts) == (6, 1, 7)
        assert failure.original is not None
        assert failure.original.queue == "prompts"
        assert not bench.broker.unacked


async def test_one_stalled_rollout_does_not_condemn_the_engine(tmp_path: Path) -> None:
    async with Bench(tmp_path, limits=LIMITS) as bench:
        bench.engine.hold_at = 2
        for group in range(2):
            bench.broker.put("prompts", task(group))
        await generating(bench, 2)
        first, second = bench.floor.slots
        await bench.floor.sweep.once(0.0)
        second.still_s = -5.0  # it moved later
        bench.broker.giving = False
        await bench.floor.sweep.once(10.0)
        await bench.until(lambda: first not in bench.floor.slots)
        assert second in bench.floor.slots
        bench.engine.release()
        await bench.until(lambda: bool(bench.broker.queues["rollouts"]))


async def test_two_stalled_rollouts_without_a_token_to_anybody_condemn_it(
    tmp_path: Path,
) -> None:
    async with Bench(tmp_path, limits=LIMITS) as bench:
        bench.engine.hold_at = 2
        for group in range(2):
            bench.broker.put("prompts", task(group))
        await generating(bench, 2)
        await bench.floor.sweep.once(0.0)
        with pytest.raises(EngineFailed, match=r"engine hangs: no token to any of 2 rollouts"):
            await bench.floor.sweep.once(10.0)


async def test_an_engine_that_does_not_obey_a_cut_is_condemned(tmp_path: Path) -> None:
    async with Bench(tmp_path, limits=LIMITS) as bench:
        bench.engine.hold_at = 2
        bench.broker.put("prompts", task(0))
        await generating(bench)
        bench.engine.deaf = True
        await bench.floor.sweep.once(0.0)
        await bench.floor.sweep.once(10.0)
        await bench.until(lambda: bench.floor.counters.stalled == 1)
        await asyncio.sleep(0.01)
        await bench.floor.sweep.once(9.0)
        with pytest.raises(EngineFailed, match=r"0\.0: generating at token 5"):
            await bench.floor.sweep.once(1.0)


async def test_what_is_not_admitted_for_long_goes_back_uncounted(tmp_path: Path) -> None:
    limits = {"sweep_s": 1000.0, "snapshot_interval_s": 20.0}
    async with Bench(tmp_path, limits=limits) as bench:
        bench.broker.put("prompts", task(0), min_version=7, returns=1, returns_total=1)
        await bench.until(lambda: len(bench.floor.slots) == 1)
        bench.broker.giving = False
        await bench.floor.sweep.once(23.0)
        await bench.until(lambda: bool(bench.broker.queues["prompts"]))
        (headers,) = bench.broker.headers("prompts")
        assert (headers.returns, headers.min_version) == (1, 7)
        await bench.until(lambda: len(bench.floor.slots) == 0)


async def test_the_interval_cuts_only_what_has_something_to_save(tmp_path: Path) -> None:
    limits = {"sweep_s": 1000.0, "snapshot_interval_s": 20.0}
    async with Bench(tmp_path, limits=limits) as bench:
        bench.engine.hold_at = 0
        bench.broker.put("prompts", task(0))
        await bench.until(lambda: bool(bench.engine.running))
        bench.broker.giving = False
        await bench.floor.sweep.once(23.0)
        await asyncio.sleep(0.01)
        assert len(bench.engine.running) == 1, "nothing would be saved"
        bench.engine.release(2)
        await generating(bench)
        await bench.floor.sweep.once(1.0)
        await bench.until(lambda: bool(bench.broker.queues["cancel_queue"]))
        (headers,) = bench.broker.headers("cancel_queue")
        assert (headers.returns, headers.returns_total) == (0, 0)


def test_a_rollout_that_is_not_running_never_stalls() -> None:
    headers = Headers(run_id="r", group=0, rollout_id="0.0")
    held = Held(headers=headers, work=task(0), deliveries=[], returns=Returns())
    watch = StallWatch(timeout_s=1.0, counters=Counters())
    assert watch.look([held], 5.0) == []
    assert watch.look([held], 5.0) == []
    assert not watch.engine_hangs
