"""Leaving: by SIGTERM, at the end of the run, with the broker away, with a dead engine."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from consumers.rollout import worker
from consumers.rollout.engines.base import EngineFailed
from infra.roles.errors import LeftWithoutHandover
from schemas.control import RunState, Wanted
from tests.unit.rollout.worker_fakes import EOS, PROMPT, RUN_ID, Bench, manifest, task

WHOLE = (*PROMPT, *range(10, 17), EOS)


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the role's body on a bench's fakes; no watchdog, for it would end the tests."""
    monkeypatch.setattr(worker, "Watchdog", lambda _limit_s: contextlib.nullcontext())

    def start(bench: Bench) -> "asyncio.Task[None]":
        async def newest(*_: object, below: int | None = None) -> Any:
            return bench.store

        monkeypatch.setattr(worker, "newest_manifest", newest)
        monkeypatch.setattr(worker, "held_weights", lambda _config, _store: bench)
        return asyncio.create_task(
            worker.serve_rollouts(
                bench.context,
                limits=bench.limits,
                build_engine=lambda _config: bench.engine,
                make_loop=lambda _context, _engine, gate: bench.loop(gate),
            )
        )

    return start


async def running(bench: Bench, number: int) -> None:
    """Until so many have sampled as far as the engine lets them."""
    engine = bench.engine
    assert engine.hold_at is not None
    sampled = number * engine.hold_at
    await bench.until(
        lambda: (len(engine.running), engine.num_sampled) == (number, sampled), "running"
    )


async def sampling(
    tmp_path: Path, serve: Any, *, returns: int = 0, **options: Any
) -> "tuple[Bench, asyncio.Task[None]]":
    """A role with one rollout, which pauses after three tokens; and its body."""
    bench = Bench(tmp_path, **options)
    bench.engine.hold_at = 3
    bench.broker.put("prompts", task(0), returns=returns, returns_total=returns)
    body = serve(bench)
    await running(bench, 1)
    return bench, body


async def test_told_to_stop_it_hands_over_snapshots_and_what_it_had_not_started(
    tmp_path: Path, serve: Any
) -> None:
    bench = Bench(tmp_path, slots=3)
    bench.engine.hold_at = 3
    for group in range(2):
        bench.broker.put("prompts", task(group), returns=1, returns_total=1)
    bench.broker.put("prompts", task(9), min_version=4, returns=1, returns_total=1)
    body = serve(bench)
    await running(bench, 2)
    await bench.until(lambda: len(bench.broker.unacked) == 3)
    bench.context.stop.set()
    await body
    assert not bench.broker.unacked
    snapshots = bench.broker.bodies("cancel_queue")
    assert [len(one.progress.tokens) for one in snapshots] == [6, 6]
    assert [h.returns for h in bench.broker.headers("cancel_queue")] == [0, 0]
    (back,) = bench.broker.headers("prompts")
    assert (back.rollout_id, back.min_version, back.returns) == ("9.0", 4, 1)
    assert bench.settled == [0, -1], "the first version was held, and is no more"


async def test_leaving_before_the_first_token_counts_as_a_return(
    tmp_path: Path, serve: Any
) -> None:
    bench = Bench(tmp_path)
    bench.engine.hold_at = 0
    bench.broker.put("prompts", task(0))
    body = serve(bench)
    await running(bench, 1)
    bench.context.stop.set()
    await body
    (back,) = bench.broker.headers("prompts")
    assert (back.returns, back.returns_total) == (1, 1)


async def test_what_left_goes_on_elsewhere_token_for_token(tmp_path: Path, serve: Any) -> None:
    bench = Bench(tmp_path)
    bench.engine.hold_at = 5
    bench.broker.put("prompts", task(0))
    body = serve(bench)
    await running(bench, 1)
    bench.context.stop.set()
    await body
    async with Bench(tmp_path) as other:
        other.broker.queues["cancel_queue"] = bench.broker.queues["cancel_queue"]
        await other.until(lambda: len(other.broker.queues["rollouts"]) == 1)
        (rollout,) = other.broker.bodies("rollouts")
        assert tuple(rollout.progress.tokens.token_ids) == WHOLE


async def test_without_confirms_it_leaves_after_the_grace_with_its_own_code(
    tmp_path: Path, serve: Any
) -> None:
    bench, body = await sampling(tmp_path, serve, limits={"grace_s": 0.2})
    bench.broker.confirming.clear()
    bench.context.stop.set()
    with pytest.raises(LeftWithoutHandover) as left:
        await body
    assert left.value.exit_code == 7
    assert len(bench.broker.unacked) == 1, "the broker gives it to another worker"


async def test_with_the_broker_away_it_leaves_with_its_own_code(tmp_path: Path, serve: Any) -> None:
    bench, body = await sampling(tmp_path, serve, limits={"grace_s": 0.2})
    bench.broker.giving = bench.broker.connected = False
    bench.broker.lose_deliveries()
    bench.broker.queues["prompts"].clear()
    bench.context.stop.set()
    with pytest.raises(LeftWithoutHandover):
        await body


async def test_with_the_broker_back_within_the_grace_it_leaves_clean(
    tmp_path: Path, serve: Any
) -> None:
    bench, body = await sampling(tmp_path, serve)
    bench.broker.giving = bench.broker.connected = False
    bench.broker.lose_deliveries()
    bench.context.stop.set()
    await asyncio.sleep(0.1)
    assert not body.done()
    bench.broker.connected = True
    await body
    assert len(bench.broker.queues["prompts"]) == 1, "the broker has it again"


async def test_at_the_end_of_the_run_it_leaves_at_once(tmp_path: Path, serve: Any) -> None:
    bench, body = await sampling(tmp_path, serve)
    bench.broker.confirming.clear()
    bench.context.hear_run_state(
        RunState(run_id=RUN_ID, number=1, version=0, wanted=Wanted.STOPPED)
    )
    await body
    assert not bench.broker.log


async def test_stopped_while_it_waits_for_the_first_weights(tmp_path: Path, serve: Any) -> None:
    bench = Bench(tmp_path)
    bench.store = None
    body = serve(bench)
    await bench.until(lambda: "first weights" in bench.context.waits.current()[0])
    bench.context.stop.set()
    await body


async def test_it_starts_with_the_newest_version_once_there_is_one(
    tmp_path: Path, serve: Any
) -> None:
    bench = Bench(tmp_path)
    bench.store = None
    bench.broker.put("prompts", task(0))
    body = serve(bench)
    await bench.until(lambda: "first weights" in bench.context.waits.current()[0])
    bench.unreadable = {5}
    bench.context.hear_weights(manifest(5))
    await bench.until(lambda: bench.preparing.count(5) == 1)
    bench.store = manifest(6)
    await bench.until(lambda: bench.engine.version == 6)
    await bench.until(lambda: len(bench.broker.queues["rollouts"]) == 1)
    bench.context.stop.set()
    await body


async def test_a_dead_engine_ends_the_worker_and_its_rollouts_go_back_counted(
    tmp_path: Path, serve: Any
) -> None:
    bench, body = await sampling(tmp_path, serve, returns=1)
    bench.engine.die(EngineFailed("out of memory"))
    with pytest.raises(EngineFailed, match="out of memory"):
        await body
    (snapshot,) = bench.broker.bodies("cancel_queue")
    assert len(snapshot.progress.tokens) == 6
    (headers,) = bench.broker.headers("cancel_queue")
    assert (headers.returns, headers.returns_total) == (2, 2), "it may be the reason"
    assert not bench.broker.unacked


async def test_draining_hands_over_and_goes_on_when_told(tmp_path: Path, serve: Any) -> None:
    bench, body = await sampling(tmp_path, serve)
    state = RunState(run_id=RUN_ID, number=1, version=0, wanted=Wanted.DRAINING)
    bench.context.hear_run_state(state)
    await bench.until(lambda: ("ack", "prompts", "0.0") in bench.broker.log)
    await asyncio.sleep(0.01)
    assert len(bench.broker.queues["cancel_queue"]) == 1, "nothing is taken while draining"
    bench.engine.release()
    bench.context.hear_run_state(state.model_copy(update={"number": 2, "wanted": Wanted.RUNNING}))
    await bench.until(lambda: len(bench.broker.queues["rollouts"]) == 1)
    bench.context.stop.set()
    await body


async def test_told_to_leave_while_a_cut_is_unconfirmed_it_still_hands_over(
    tmp_path: Path,
) -> None:
    async with Bench(tmp_path) as bench:
        bench.engine.hold_at = 3
        bench.broker.put("prompts", task(0))
        await bench.until(
            lambda: any(h.state and h.state.num_new_tokens == 3 for h in bench.floor.slots)
        )
        bench.broker.confirming.clear()
        bench.publish(1)
        await bench.until(lambda: bench.floor.outbox.unconfirmed()[0] == 1)
        bench.broker.giving = False
        leaving = asyncio.create_task(bench.floor.departure.leave())
        await asyncio.sleep(2 * bench.limits.confirm_patience_s)
        bench.broker.confirming.set()
        await leaving
        assert len(bench.broker.queues["cancel_queue"]) == 1
        assert not bench.broker.unacked


async def test_what_is_taken_in_the_very_moment_of_leaving_is_handed_over(
    tmp_path: Path,
) -> None:
    async with Bench(tmp_path) as bench:
        bench.engine.hold_at = 0
        bench.floor.holds.put("test", "only what the test takes")
        await bench.floor.intake.settle(5.0)
        bench.broker.put("prompts", task(0))
        delivery = await bench.broker.get("prompts")
        assert delivery is not None
        await bench.floor.intake.accept(delivery)
        await bench.floor.departure.leave()
        assert not bench.broker.unacked
        assert len(bench.broker.queues["prompts"]) == 1


async def test_what_is_on_its_way_back_is_neither_given_back_again_nor_started(
    tmp_path: Path,
) -> None:
    limits = {"sweep_s": 1000.0, "snapshot_interval_s": 20.0}
    async with Bench(tmp_path, slots=2, limits=limits) as bench:
        for group in range(2):
            bench.broker.put("prompts", task(group), min_version=7)
        await bench.until(lambda: len(bench.floor.slots) == 2)
        bench.floor.holds.put("test", "nothing more")
        bench.broker.confirming.clear()
        (old, _) = bench.floor.slots
        old.age_s = 23.0
        await bench.floor.sweep.once(0.0)
        await bench.until(lambda: bench.floor.outbox.unconfirmed()[0] == 1)
        giving_back = asyncio.create_task(bench.floor.departure.give_back_waiting())
        await bench.until(lambda: bench.floor.outbox.unconfirmed()[0] == 2)
        bench.floor.runner.served_version = 7
        bench.floor.runner.start_allowed()
        await asyncio.sleep(0.01)
        assert not bench.engine.requests
        assert bench.floor.outbox.unconfirmed()[0] == 2
        bench.broker.confirming.set()
        await giving_back
        await bench.until(lambda: not len(bench.floor.slots))
        back = sorted(one.rollout_id for one in bench.broker.headers("prompts"))
        assert back == ["0.0", "1.0"]


async def test_requests_under_way_come_in_before_the_intake_ends(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        await bench.until(lambda: len(bench.broker.gets) > 20)
        bench.floor.holds.put("leaving", "leaving")
        await bench.floor.intake.settle(5.0)
        number = len(bench.broker.gets)
        bench.broker.put("prompts", task(0))
        await asyncio.sleep(0.02)
        assert len(bench.broker.gets) == number


async def test_while_it_works_the_event_loop_is_watched(
    tmp_path: Path, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    @contextlib.contextmanager
    def watchdog(limit_s: float) -> Iterator[None]:
        seen.append(limit_s)
        yield
        seen.append("over")

    monkeypatch.setattr(worker, "Watchdog", watchdog)
    bench = Bench(tmp_path, limits={"stall_timeout_s": 70.0})
    bench.engine.hold_at = 3
    bench.broker.put("prompts", task(0))
    body = serve(bench)
    await running(bench, 1)
    assert seen == [70.0]
    bench.context.stop.set()
    await body
    assert seen == [70.0, "over"]


async def test_an_engine_that_hangs_ends_the_worker_and_what_it_sampled_goes_back(
    tmp_path: Path, serve: Any
) -> None:
    limits = {"stall_timeout_s": 0.2, "sweep_s": 0.02}
    bench = Bench(tmp_path, slots=3, limits=limits)
    bench.engine.hold_at = 3
    bench.engine.deaf = True
    for group in range(3):
        bench.broker.put("prompts", task(group))
    body = serve(bench)
    with pytest.raises(EngineFailed, match="the engine hangs: no token to any of 3 rollouts"):
        await body
    snapshots = bench.broker.bodies("cancel_queue")
    assert [len(one.progress.tokens) for one in snapshots] == [6, 6, 6]
    assert {h.returns for h in bench.broker.headers("cancel_queue")} == {1}
    assert not bench.broker.unacked


async def test_an_engine_that_hangs_when_new_weights_come_ends_the_worker(
    tmp_path: Path, serve: Any
) -> None:
    limits = {"stall_timeout_s": 0.2, "sweep_s": 1000.0}
    bench, body = await sampling(tmp_path, serve, limits=limits)
    bench.engine.deaf = True
    bench.context.hear_weights(manifest(1))
    with pytest.raises(EngineFailed, match="told to end what it generates, it did not within"):
        await body
    (snapshot,) = bench.broker.bodies("cancel_queue")
    assert len(snapshot.progress.tokens) == 6
    assert not bench.broker.unacked


async def test_an_engine_that_dies_in_a_swap_while_the_worker_leaves_is_no_secret(
    tmp_path: Path, serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bench, body = await sampling(tmp_path, serve)
    loading, go_on = asyncio.Event(), asyncio.Event()

    async def die(_weights: object) -> None:
        loading.set()
        await go_on.wait()
        raise EngineFailed("out of memory in the swap")

    bench.engine.load_weights = die  # type: ignore[method-assign]
    bench.broker.blocked = True
    bench.context.hear_weights(manifest(1))
    await loading.wait()
    bench.broker.confirming.clear()
    bench.context.stop.set()
    await asyncio.sleep(0.05)
    go_on.set()
    await asyncio.sleep(0.05)
    bench.broker.blocked = False
    bench.broker.confirming.set()
    await body
    assert "broke while handing over: out of memory in the swap" in caplog.text
    assert len(bench.broker.queues["cancel_queue"]) == 1
    assert not bench.broker.unacked
