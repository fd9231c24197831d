"""Versions on their way to the engine: the newest, the unreadable, the refused; what is held."""

import asyncio
from pathlib import Path

from consumers.rollout.engines.base import WeightsRefused
from infra.observe.waits import Waits
from infra.weights.prepared import PreparedWeights
from schemas.control import WeightsPublished
from tests.unit.rollout.worker_fakes import Bench, manifest, task


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


async def test_a_worker_that_begins_on_an_empty_store_says_so(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.store = None
    bench.first_heard = None
    entering = asyncio.create_task(bench.__aenter__())
    await bench.until(lambda: hasattr(bench, "floor"))
    refuses = lambda: bench.floor.describe()["refuses"]  # noqa: E731
    await asyncio.sleep(0.02)
    assert refuses() == -1, "nothing is published yet"
    bench.floor.sync.hear_number(5)
    await bench.until(lambda: refuses() == 5)
    bench.publish(6)
    await entering
    assert (bench.floor.swap.version, refuses()) == (6, -1)
    await bench.__aexit__()


async def test_an_empty_store_does_not_matter_to_a_worker_that_serves_the_newest(
    tmp_path: Path,
) -> None:
    async with Bench(tmp_path, limits={"silence_s": 0.01}) as bench:
        bench.publish(1)
        await bench.until(lambda: bench.floor.swap.version == 1)
        bench.store = None
        await asyncio.sleep(0.05)
        assert bench.floor.describe()["refuses"] == -1


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
        await bench.until(lambda: bench.settled == [0, None], "it is dropped")
        assert bench.floor.swap.version == 0
        assert [h.min_version for h in bench.broker.headers("prompts")] == [1]
        bench.engine.refuse = None
        bench.publish(2)
        await bench.until(lambda: len(bench.broker.queues["rollouts"]) == 1)
        assert bench.settled == [0, None, 2]


async def test_a_version_is_held_once_the_engine_serves_it_and_not_before(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        assert bench.settled == [0]
        load, seen = bench.engine.load_weights, []

        async def loading(weights: PreparedWeights) -> None:
            seen.append(list(bench.settled))
            await load(weights)

        bench.engine.load_weights = loading  # type: ignore[method-assign]
        bench.publish(1)
        await bench.until(lambda: bench.settled == [0, 1])
        assert seen == [[0]]


async def test_what_is_skipped_for_a_newer_version_is_not_held(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        bench.prepare_gate = lambda version: (
            bench.floor.sync.hear(manifest(2)) if version == 1 else None
        )
        bench.floor.sync.hear(manifest(1))
        await bench.until(lambda: bench.settled == [0, 2])
        assert bench.preparing == [0, 1, 2]
        assert bench.engine.loads == [2]


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


async def test_a_store_that_does_not_answer_is_waited_for_by_name(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        waits, answer = Waits(), asyncio.Event()

        async def newest(_: int | None) -> WeightsPublished:
            await answer.wait()
            return manifest(1)

        bench.floor.sync._waits = waits
        bench.floor.sync._read_newest = newest
        bench.floor.sync.hear_number(1)
        asked = "the weight store to tell its newest version"
        await bench.until(lambda: waits.current()[0] == asked)
        answer.set()
        await bench.until(lambda: bench.floor.swap.version == 1)
