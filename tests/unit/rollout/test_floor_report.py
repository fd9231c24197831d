"""What a rollout worker tells the monitor about what it holds."""

import asyncio
from pathlib import Path

from consumers.rollout.tools.running import RunningCalls
from schemas.control import Heartbeat
from schemas.reports import RolloutReport, Suspect
from tests.unit.rollout.worker_fakes import Bench, hold, task


def report(bench: Bench) -> RolloutReport:
    """As it would travel."""
    told = bench.floor.describe()
    beat = Heartbeat(role="rollout", worker="w", host="h", pid=1, **{"state": "running", **told})
    again = Heartbeat.model_validate_json(beat.model_dump_json())
    assert again.rollout is not None
    return again.rollout


async def test_rollouts_are_told_by_version_and_by_age(tmp_path: Path) -> None:
    async with Bench(tmp_path, slots=4) as bench:
        for group in range(3):
            bench.broker.put("prompts", task(group))
        await hold(bench, at=3, rollouts=3)
        told = report(bench)
        assert (told.engine, told.versions, told.generating) == ("transformers", ((0, 3),), 3)
        assert sum(told.ages) == told.ages[0] == 3
        for held in bench.floor.slots:
            held.age_s = 45.0
        assert report(bench).ages == (0, 3, 0, 0, 0)


async def test_an_engine_that_gives_nothing_grows_old(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        bench.broker.put("prompts", task())
        await hold(bench, at=2, rollouts=1)
        await bench.until(lambda: bench.floor.sweep.token_age_s > 0.01, "time passes")
        bench.engine.release()
        await bench.until(lambda: not len(bench.floor.slots), "it ends")
        await bench.until(lambda: bench.floor.sweep.token_age_s == 0.0, "an empty engine is young")


async def test_a_version_that_does_not_come_is_waited_for(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        assert report(bench).behind_s == 0.0
        bench.unreadable = {1}
        bench.publish(1)
        await bench.until(lambda: bench.floor.sync.refuses == 1, "it is refused")
        await asyncio.sleep(0.06)
        told = report(bench)
        assert told.refusal == "version 1 is damaged"
        assert told.behind_s > 0
        bench.unreadable = set()
        await bench.until(lambda: bench.floor.swap.version == 1, "it is served")
        await bench.until(lambda: report(bench).behind_s == 0.0, "it has caught up")
        told = report(bench)
        assert (told.refusal, told.usual_update_s > 0) == ("", True)


async def test_who_came_back_is_told_at_once(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        bench.broker.put("prompts", task(5), returns=1)
        await hold(bench, at=2, rollouts=1)
        assert not bench.context.beat.is_set()
        assert report(bench).suspects == ()
        bench.engine.release()
        await bench.until(lambda: not len(bench.floor.slots), "it ends")
        bench.broker.put("prompts", task(6), returns=2, returns_total=2)
        await bench.until(bench.context.beat.is_set, "it is told")
        assert not len(bench.floor.slots)
        assert report(bench).suspects == (Suspect(rollout_id="6.0", returns=2),)
        await hold(bench, at=2, rollouts=1)
        assert report(bench).suspects == (Suspect(rollout_id="6.0", returns=2),)


def test_the_longest_call_is_told_with_what_is_usual() -> None:
    now = 0.0
    calls = RunningCalls(lambda: now)
    assert calls.longest() is None
    for _ in range(2):
        with calls.noted("1.0:0:0", "search", 30.0):
            now += 2.0
    with calls.noted("4.2:1:0", "search", 30.0):
        now += 9.0
        told = calls.longest()
        assert told is not None
        assert (told.name, told.rollout_id, told.running_s) == ("search", "4.2", 9.0)
        assert (told.usual_s, told.limit_s, told.given_up) == (2.0, 30.0, False)
    assert calls.longest() is None


def test_a_call_that_was_given_up_is_told_for_a_while() -> None:
    now = 0.0
    calls = RunningCalls(lambda: now)
    with calls.noted("1.0:0:0", "search", 5.0):
        now = 5.0
    told = calls.longest()
    assert told is not None
    assert (told.given_up, told.running_s, told.usual_s) == (True, 5.0, 0.0)
    now = 36.0
    assert calls.longest() is None
