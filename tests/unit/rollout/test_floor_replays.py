"""A replay runs beside what it replays, and is never taken for it."""

from collections.abc import Iterable
from pathlib import Path

from consumers.rollout.agents.state import CutReason
from infra.amqp.message import Outgoing
from schemas.control import RunState
from schemas.headers import REPLAY
from schemas.work import Rollout, Snapshot
from tests.unit.rollout.worker_fakes import RUN_ID, Bench, manifest, task


def replays(messages: Iterable[Outgoing]) -> list[Outgoing]:
    """Those that are marked."""
    return [message for message in messages if REPLAY in message.envelope.headers]


async def test_live_and_replay_of_one_rollout_are_two(tmp_path: Path) -> None:
    async with Bench(tmp_path, slots=3) as bench:
        bench.engine.hold_at = 2
        bench.broker.put("prompts", task(4))
        bench.broker.put("prompts", task(4), replay="r1")
        bench.broker.put("prompts", task(4), replay="r2", run_id="another-run")
        await bench.until(lambda: len(bench.engine.running) == 3)
        assert set(bench.floor.describe()["rollout_ids"]) == {"4.0", "4.0@r1", "4.0@r2"}
        assert bench.floor.counters.readopted == 0

        bench.engine.release()
        await bench.until(lambda: len(bench.broker.queues["rollouts"]) == 3)
        live = [message for message in bench.broker.sent if not replays([message])]
        assert [(message.exchange, message.routing_key) for message in live] == [
            ("work", "rollout")
        ]
        straight = replays(bench.broker.sent)
        assert {(message.exchange, message.routing_key) for message in straight} == {
            ("", "rollouts")
        }
        assert len({message.envelope.message_id for message in bench.broker.sent}) == 3
        assert not bench.broker.unacked


async def test_a_replay_that_comes_again_is_adopted_by_the_replay(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        bench.engine.hold_at = 2
        bench.broker.put("prompts", task(4))
        bench.broker.put("prompts", task(4), replay="r1")
        await bench.until(lambda: len(bench.engine.running) == 2)
        bench.broker.lose_deliveries()
        await bench.until(lambda: bench.floor.counters.readopted == 2)
        bench.engine.release()
        await bench.until(lambda: len(bench.broker.queues["rollouts"]) == 2)
        assert [headers.replay for headers in bench.broker.headers("rollouts")].count("r1") == 1


async def test_a_replayed_snapshot_stays_one_and_waits_for_no_version(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        bench.engine.hold_at = 2
        bench.broker.put("prompts", task(4), replay="r1", min_version=5000)
        await bench.until(lambda: len(bench.engine.running) == 1)
        bench.broker.giving = False
        bench.publish(1)
        await bench.until(lambda: bool(bench.broker.queues["cancel_queue"]))
        (headers,) = bench.broker.headers("cancel_queue")
        assert (headers.replay, headers.rollout_id) == ("r1", "4.0")
        (snapshot,) = bench.broker.bodies("cancel_queue")
        assert isinstance(snapshot, Snapshot)

        bench.engine.release()
        bench.broker.giving = True
        await bench.until(lambda: bool(bench.broker.queues["rollouts"]))
        (rollout,) = bench.broker.bodies("rollouts")
        assert isinstance(rollout, Rollout) and rollout.progress.interruptions
        assert bench.broker.headers("rollouts")[0].replay == "r1"
        assert {message.exchange for message in bench.broker.sent} == {""}


async def test_a_replay_goes_on_when_its_group_is_closed(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        bench.engine.hold_at = 2
        bench.broker.put("prompts", task(4))
        bench.broker.put("prompts", task(4), replay="r1")
        await bench.until(lambda: len(bench.engine.running) == 2)
        closing = RunState(run_id=RUN_ID, number=1, version=0, closed_early=(4,))
        bench.floor.hear_run_state(closing)
        await bench.until(lambda: len(bench.engine.running) == 1)
        bench.engine.release()
        await bench.until(lambda: bool(bench.broker.queues["rollouts"]))
        assert [headers.replay for headers in bench.broker.headers("rollouts")] == ["r1"]


async def test_a_replay_that_fails_is_a_dead_letter_for_people_alone(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        bench.broker.put("cancel_queue", task(4), replay="r1")  # a task is no snapshot
        await bench.until(lambda: bool(bench.broker.dead))
        (message,) = bench.broker.sent
        assert (message.exchange, message.routing_key) == ("", "dead_letters")
        assert message.envelope.headers[REPLAY] == "r1"


async def test_a_replay_that_is_handed_over_is_still_one(tmp_path: Path) -> None:
    async with Bench(tmp_path, slots=1) as bench:
        bench.engine.hold_at = 0
        bench.broker.put("prompts", task(4), replay="r1")
        await bench.until(lambda: len(bench.engine.running) == 1)
        bench.broker.giving = False
        await bench.floor.runner.cut(bench.floor.slots, CutReason.LEAVE)
        await bench.until(lambda: bool(bench.broker.queues["prompts"]))
        assert [headers.replay for headers in bench.broker.headers("prompts")] == ["r1"]
        assert {message.exchange for message in bench.broker.sent} == {""}


async def test_a_live_rollout_waits_for_its_version_while_its_replay_runs(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        bench.engine.hold_at = 2
        bench.broker.put("prompts", task(4), min_version=1)
        bench.broker.put("prompts", task(4), min_version=1, replay="r1")
        await bench.until(lambda: len(bench.floor.slots) == 2 and len(bench.engine.running) == 1)
        (running,) = [held for held in bench.floor.slots if held.runner is not None]
        assert running.rollout_id == "4.0@r1"
        bench.store = manifest(1)
        bench.engine.release()
        bench.publish(1)
        await bench.until(lambda: len(bench.broker.queues["rollouts"]) == 2)
