"""Weight updates: what is cut, confirmed, acknowledged, and what crosses in the engine."""

import asyncio
from pathlib import Path

from schemas.headers import Purpose
from schemas.work import AgentPhase
from tests.unit.rollout.worker_fakes import EOS, PROMPT, Bench, hold, position_of, task

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
