"""Weight updates: what is cut, confirmed, acknowledged, and what crosses in the engine."""

import asyncio
from pathlib import Path

from consumers.rollout.engines.base import WeightsRefused
from schemas.headers import Purpose
from schemas.work import AgentPhase
from tests.unit.rollout.worker_fakes import EOS, PROMPT, Bench, hold, manifest, position_of, task

WHOLE = (*PROMPT, *range(10, 17), EOS)


async def test_a_task_becomes_a_rollout_confirmed_before_it_is_acknowledged(
    tmp_path: Path,
) -> None:
    async with Bench(tmp_path) as bench:
        bench.broker.put("prompts", task(3, 1), attempt=2)
        await bench.until(lambda: ("ack", "prompts", "3.1") in bench.broker.log)
        (rollout,) = bench.broker.bodies("rollouts")
        assert tuple(rollout.progress.tokens.token_ids) == WHOLE
        assert bench.broker.headers("rollouts")[0].attempt == 2
        assert bench.broker.log == [("publish", "rollouts", "3.1"), ("ack", "prompts", "3.1")]
        assert bench.floor.counters.rollouts_finished == 1


async def test_republish_cuts_at_the_token_and_the_rollout_ends_as_if_it_had_not(
    tmp_path: Path,
) -> None:
    async with Bench(tmp_path) as bench:
        bench.broker.put("prompts", task(0, 0))
        bench.broker.put("prompts", task(0, 1))
        await hold(bench, at=3, rollouts=2)
        bench.publish(1)
        await bench.until(lambda: bench.floor.swap.version == 1)
        log = bench.broker.log
        for name in ("0.0", "0.1"):
            assert position_of(log, ("publish", "cancel_queue", name)) < position_of(
                log, ("ack", "prompts", name)
            )
        await bench.until(lambda: bench.floor.counters.resumed == 2)
        bench.engine.release()
        await bench.until(lambda: len(bench.broker.queues["rollouts"]) == 2)
        for rollout in bench.broker.bodies("rollouts"):
            assert tuple(rollout.progress.tokens.token_ids) == WHOLE
            assert rollout.progress.tokens.versions == ((-1, 3), (0, 3), (1, 5))
            (cut,) = rollout.progress.interruptions
            assert (cut.at_token, cut.version, cut.reason) == (6, 0, "sync")
        await bench.until(lambda: not bench.broker.unacked)


async def test_a_snapshot_carries_the_version_it_was_cut_for(tmp_path: Path) -> None:
    async with Bench(tmp_path, slots=1) as bench:
        bench.broker.put("prompts", task(0), returns=2, returns_total=4)
        await hold(bench, at=2, rollouts=1)
        bench.broker.giving = False
        bench.publish(3)
        await bench.until(lambda: bench.floor.swap.version == 3)
        (headers,) = bench.broker.headers("cancel_queue")
        assert headers.min_version == 3
        assert (headers.returns, headers.returns_total) == (0, 4), "tokens were gained"


async def test_cut_before_the_first_token_the_plain_task_goes_back(tmp_path: Path) -> None:
    async with Bench(tmp_path, slots=1) as bench:
        bench.engine.hold_at = 0
        bench.broker.put("prompts", task(0), returns=1, returns_total=1)
        await bench.until(lambda: bool(bench.engine.running))
        bench.broker.giving = False
        bench.publish(1)
        await bench.until(lambda: bench.floor.swap.version == 1)
        assert bench.broker.bodies("prompts") == [task(0)]
        (headers,) = bench.broker.headers("prompts")
        assert headers.min_version == 1
        assert (headers.returns, headers.returns_total) == (1, 1), "a sync is not its fault"


async def test_evaluations_cross_in_the_engine(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        bench.broker.put("eval_prompts", task(0, purpose=Purpose.EVAL))
        bench.broker.put("prompts", task(0))
        await hold(bench, at=2, rollouts=2)
        bench.publish(1)
        await bench.until(lambda: bench.floor.swap.version == 1)
        assert len(bench.engine.interrupted) == 1
        bench.engine.release()
        await bench.until(lambda: len(bench.broker.queues["rollouts"]) == 2)
        evaluated = next(
            one for one in bench.broker.bodies("rollouts") if one.purpose is Purpose.EVAL
        )
        assert not evaluated.progress.interruptions
        assert evaluated.progress.tokens.versions == ((-1, 3), (0, 2), (1, 6))


async def test_in_flight_cuts_nothing(tmp_path: Path) -> None:
    async with Bench(tmp_path, on_sync="in_flight") as bench:
        bench.broker.put("prompts", task(0))
        await hold(bench, at=4, rollouts=1)
        bench.publish(1)
        await bench.until(lambda: bench.floor.swap.version == 1)
        bench.engine.release()
        await bench.until(lambda: len(bench.broker.queues["rollouts"]) == 1)
        (rollout,) = bench.broker.bodies("rollouts")
        assert rollout.progress.tokens.versions == ((-1, 3), (0, 4), (1, 4))
        assert not bench.engine.interrupted


async def test_unconfirmed_snapshots_stay_and_go_on_under_the_new_weights(
    tmp_path: Path,
) -> None:
    async with Bench(tmp_path) as bench:
        bench.broker.put("prompts", task(0))
        await hold(bench, at=3, rollouts=1)
        bench.broker.confirming.clear()
        bench.publish(1)
        await bench.until(lambda: bench.floor.swap.version == 1)
        assert not bench.broker.log, "neither confirmed nor acknowledged"
        assert bench.floor.counters.unconfirmed_cuts == 1
        bench.broker.confirming.set()
        bench.engine.release()
        await bench.until(lambda: ("ack", "prompts", "0.0") in bench.broker.log)
        (rollout,) = bench.broker.bodies("rollouts")
        assert tuple(rollout.progress.tokens.token_ids) == WHOLE
        assert not bench.broker.queues["cancel_queue"]


async def test_with_an_alarm_nothing_is_cut(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        bench.broker.put("prompts", task(0))
        await hold(bench, at=3, rollouts=1)
        bench.broker.blocked = True
        bench.publish(1)
        await bench.until(lambda: bench.floor.swap.version == 1)
        assert not bench.engine.interrupted


async def test_a_newer_version_heard_while_fetching_is_taken_instead(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        loop = asyncio.get_running_loop()

        def newer_is_heard(version: int) -> None:
            if version == 1:
                loop.call_soon_threadsafe(bench.publish, 2)
                asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()

        bench.prepare_gate = newer_is_heard
        bench.publish(1)
        await bench.until(lambda: bench.floor.swap.version == 2)
        assert bench.engine.loads == [2]


async def test_a_trainer_faster_than_fetching_does_not_starve_the_worker(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        loop = asyncio.get_running_loop()

        def always_newer(version: int) -> None:
            if version < 40:
                loop.call_soon_threadsafe(bench.publish, version + 1)
                asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()

        bench.prepare_gate = always_newer
        bench.publish(1)
        await bench.until(lambda: bench.floor.swap.version == 40)
        assert len(bench.engine.loads) > 10


async def test_a_damaged_version_is_passed_over_for_the_newest(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        bench.unreadable = {1}
        bench.publish(1)
        await bench.until(lambda: bench.preparing.count(1) >= 2, "a second try")
        assert bench.floor.swap.version == 0
        bench.broker.put("prompts", task(0))
        await bench.until(lambda: len(bench.broker.queues["rollouts"]) == 1, "still working")
        bench.publish(2)
        await bench.until(lambda: bench.floor.swap.version == 2)


async def test_a_worker_whose_first_version_is_damaged_pauses_between_its_tries(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, limits={"retry_s": 1000.0})
    bench.unreadable = {0}
    entering = asyncio.create_task(bench.__aenter__())
    await bench.until(lambda: bool(bench.preparing))
    await asyncio.sleep(0.02)
    assert bench.preparing == [0]
    bench.publish(1)
    await entering
    assert bench.floor.swap.version == 1
    await bench.__aexit__()


async def test_a_worker_that_begins_on_a_damaged_version_serves_the_one_before(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    bench.unreadable, bench.older = {1}, manifest(0)
    bench.store = manifest(1)
    bench.first_heard = 1
    async with bench:
        assert bench.floor.swap.version == 0
        assert bench.floor.describe()["refuses"] == 1
        await bench.until(lambda: bench.preparing.count(1) >= 3, "it tries on")
        bench.unreadable = set()
        await bench.until(lambda: bench.floor.swap.version == 1)
        assert bench.floor.describe()["refuses"] == -1


async def test_what_cannot_be_served_is_said_until_it_can(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        refuses = lambda: bench.floor.describe()["refuses"]  # noqa: E731
        assert refuses() == -1
        bench.unreadable = {1, 2}
        bench.publish(1)
        await bench.until(lambda: bench.preparing.count(1) >= 3)
        assert refuses() == 1
        assert bench.floor.counters.weights_refused == 1, "however often it was tried"
        bench.publish(2)
        await bench.until(lambda: refuses() == 2)
        bench.unreadable = set()
        await bench.until(lambda: bench.floor.swap.version == 2)
        assert refuses() == -1
        bench.engine.refuse = WeightsRefused
        bench.publish(3)
        await bench.until(lambda: refuses() == 3)
        assert bench.floor.counters.weights_refused == 3
        bench.engine.refuse = None
        bench.publish(4)
        await bench.until(lambda: refuses() == -1)


async def test_a_version_that_was_announced_and_is_not_in_the_store_is_said(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        bench.floor.sync.hear_number(5)
        await bench.until(lambda: bench.floor.describe()["refuses"] == 5)
        bench.publish(6)
        await bench.until(lambda: bench.floor.describe()["refuses"] == -1)


async def test_a_missed_broadcast_is_found_in_the_store(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        bench.store = bench.store.model_copy(  # type: ignore[union-attr]
            update={"version": 5, "fingerprint": "print-5"}
        )
        bench.floor.sync.hear_number(5)
        await bench.until(lambda: bench.floor.swap.version == 5)


async def test_an_announced_version_that_the_store_never_had_is_forgotten(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        bench.unreadable.add(10**9)
        bench.floor.sync.hear(manifest(10**9))
        await bench.until(lambda: bench.floor.sync.newest_number == 0)
        bench.publish(1)
        await bench.until(lambda: bench.floor.swap.version == 1)
        assert not bench.floor.holds


async def test_a_message_for_a_version_never_to_come_holds_no_slot(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        bench.broker.put("prompts", task(0), min_version=5000)
        await bench.until(lambda: bool(bench.broker.dead))
        assert "waits for version 5000, the newest is 0" in bench.broker.dead[0].error
        assert not len(bench.floor.slots)


async def test_refused_weights_leave_the_old_version_and_close_admission(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        bench.engine.refuse = WeightsRefused
        bench.broker.put("prompts", task(7), min_version=1)
        await bench.until(lambda: len(bench.floor.slots) == 1)
        bench.publish(1)
        await bench.until(lambda: "weights" in bench.floor.holds)
        await bench.until(lambda: not bench.broker.unacked, "what waited for it is given back")
        assert bench.preparing == [0, 1, 1], "read once more in full"
        assert bench.floor.swap.version == 0
        assert [h.min_version for h in bench.broker.headers("prompts")] == [1]
        bench.engine.refuse = None
        bench.publish(2)
        await bench.until(lambda: len(bench.broker.queues["rollouts"]) == 1)


async def test_a_message_that_needs_newer_weights_waits_in_its_slot(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        bench.broker.put("prompts", task(0), min_version=1)
        bench.broker.put("prompts", task(1))
        await bench.until(lambda: len(bench.broker.queues["rollouts"]) == 1)
        assert len(bench.broker.unacked) == 1
        assert len(bench.engine.requests) == 1
        bench.publish(1)
        await bench.until(lambda: len(bench.broker.queues["rollouts"]) == 2)
        late = bench.broker.bodies("rollouts")[1]
        assert late.progress.tokens.oldest_version == 1


async def test_a_worker_too_far_behind_admits_nothing(tmp_path: Path) -> None:
    async with Bench(tmp_path, limits={"max_version_lag": 2}) as bench:
        bench.unreadable = {3}
        bench.publish(3)
        await bench.until(lambda: "lag" in bench.floor.holds)
        assert "3 behind the newest" in str(bench.floor.holds)
        bench.broker.put("prompts", task(0))
        await bench.until(lambda: bench.preparing.count(3) > 3)
        assert not bench.broker.unacked
        bench.unreadable = set()
        await bench.until(lambda: len(bench.broker.queues["rollouts"]) == 1)
        assert "lag" not in bench.floor.holds


async def test_a_swap_waits_until_resumed_rollouts_gained_a_token(tmp_path: Path) -> None:
    async with Bench(tmp_path, slots=1, limits={"max_swap_delay_s": 60.0}) as bench:
        bench.broker.put("prompts", task(0))
        await hold(bench, at=2, rollouts=1)
        bench.publish(1)
        await bench.until(lambda: bench.floor.counters.resumed == 1 and bench.engine.running)
        bench.publish(2)
        await bench.until(lambda: 2 in bench.preparing)
        await asyncio.sleep(0.02)
        assert bench.floor.swap.version == 1, "no token since it was resumed"
        bench.engine.release(3)
        await bench.until(lambda: bench.floor.swap.version == 2)
        assert bench.broker.log.count(("publish", "cancel_queue", "0.0")) == 2


async def test_a_rollout_cut_twice_without_progress_crosses_in_the_engine(
    tmp_path: Path,
) -> None:
    async with Bench(tmp_path, slots=1, limits={"max_swap_delay_s": 0.01}) as bench:
        bench.broker.put("prompts", task(0))
        await hold(bench, at=2, rollouts=1)
        for version in (1, 2, 3):
            bench.publish(version)
            await bench.until(lambda version=version: bench.floor.swap.version == version)
            await bench.until(lambda: bool(bench.engine.running))
        # the first cut followed tokens; the second and third found none
        assert bench.broker.log.count(("publish", "cancel_queue", "0.0")) == 2
        bench.engine.release()
        await bench.until(lambda: len(bench.broker.queues["rollouts"]) == 1)
        (rollout,) = bench.broker.bodies("rollouts")
        assert [cut.at_token for cut in rollout.progress.interruptions] == [5, 5]
        assert tuple(rollout.progress.tokens.token_ids) == WHOLE


async def test_a_task_cut_twice_before_its_first_token_crosses_too(tmp_path: Path) -> None:
    async with Bench(tmp_path, slots=1) as bench:
        bench.engine.hold_at = 0
        bench.broker.put("prompts", task(0))
        for version in (1, 2, 3):
            await bench.until(lambda: bool(bench.engine.running))
            bench.publish(version)
            await bench.until(lambda version=version: bench.floor.swap.version == version)
        assert bench.broker.log.count(("publish", "prompts", "0.0")) == 2
        (held,) = bench.floor.slots
        assert held.state is not None
        assert held.state.phase is AgentPhase.GENERATING
