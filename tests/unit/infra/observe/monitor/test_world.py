"""What is heard becomes a scene; what is old, foreign or unreadable does not."""

from pathlib import Path
from typing import Any

import pytest

from infra.amqp.admin import QueueRow
from infra.amqp.codec import encode
from infra.amqp.listener import Hearing
from infra.amqp.message import Delivery, Lease
from infra.observe.monitor.picture import Picture
from infra.observe.monitor.poller import Told
from infra.observe.monitor.scene import Scene
from infra.observe.monitor.world import World
from infra.roles.settings import load_config
from schemas.base import Message
from schemas.control import Heartbeat, RunState, Wanted, WeightFile, WeightsPublished

NODE = Hearing(address="127.0.0.1:5672", connected=True, error="", since=0.0)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(load_config("demo", [f"run.dir={tmp_path}"]))


def delivery(message: Message, *, damage: bool = False) -> Delivery:
    envelope, body = encode(
        message, app_id="x/1", correlation_id="x", headers={"run_id": "a"}, message_id="m"
    )
    body = body[:-1] if damage else body
    return Delivery("monitor", envelope, body, False, 0, 0, 0, Lease(epoch=0))


def beat(worker: str = "rollout-1", role: str = "rollout", **fields: Any) -> Delivery:
    known = {"run_id": "a", "host": "h", "pid": 1, "state": "running"}
    return delivery(Heartbeat.model_validate({**known, "role": role, "worker": worker, **fields}))


def state(run_id: str = "a", number: int = 1, **fields: Any) -> Delivery:
    return delivery(RunState(run_id=run_id, number=number, **fields))


def look(world: World, now: float, told: Told | None = None, **depths: tuple[int, int]) -> Scene:
    return world.scene(now, hearing=NODE, told=told or Told(error=""), depths=depths)


def test_workers_are_seen_in_the_order_of_the_work(world: World) -> None:
    for role in ("reward", "rollout", "producer", "trainer"):
        world.hear(beat(f"{role}-1", role), 1.0)
    seen = look(world, 2.0).workers
    assert [one.role for one in seen] == ["trainer", "producer", "rollout", "reward"]
    assert world.roles == {"trainer", "producer", "rollout", "reward"}
    assert {one.heard_s for one in seen} == {1.0}


def test_who_is_not_heard_is_silent_and_later_forgotten(world: World) -> None:
    world.hear(beat(), 0.0)
    assert look(world, 7.0).workers[0].state == "running"
    assert look(world, 8.0).workers[0].state == "silent"
    assert look(world, 121.0).workers == ()


def test_who_leaves_is_not_missed(world: World) -> None:
    for word in ("leaving", "left"):
        world.hear(beat(state=word), 0.0)
        assert look(world, 1.0).workers[0].state == "leaving"
        assert look(world, 6.5).workers == ()


def test_last_words_stay_for_a_minute(world: World) -> None:
    world.hear(beat(state="left", error="EngineFailed: gone"), 0.0)
    (worker,) = look(world, 50.0).workers
    assert (worker.state, worker.error) == ("failed", "EngineFailed: gone")
    assert look(world, 61.0).workers == ()


def test_rates_are_of_the_newest_seconds_and_of_one_process(world: World) -> None:
    for second, count in ((0.0, 0.0), (2.0, 100.0), (4.0, 300.0)):
        world.hear(beat(counters={"tokens_generated": count}), second)
    assert look(world, 4.0).rate("rollout", "tokens_generated") == 75.0
    world.hear(beat(pid=2, counters={"tokens_generated": 0.0}), 6.0)
    assert look(world, 6.0).rate("rollout", "tokens_generated") == 0.0


def test_the_state_of_the_run_is_the_newest_word(world: World) -> None:
    world.hear(state(number=2, step=5, num_steps=9, version=4, wanted=Wanted.PAUSED), 1.0)
    world.hear(state(number=1, step=4), 2.0)
    run = look(world, 3.0).run
    assert (run.step, run.num_steps, run.version, run.wanted) == (5, 9, 4, "paused")
    assert run.heard_s == 2.0


def test_an_evaluation_is_remembered_for_a_while(world: World) -> None:
    world.hear(state(), 0.0)
    assert look(world, 0.0).run.evaluated_s is None
    world.hear(state(number=2, evaluating=3), 1.0)
    assert look(world, 5.0).run.evaluated_s == 0.0
    world.hear(state(number=3), 6.0)
    assert look(world, 8.0).run.evaluated_s == 2.0


def test_a_version_is_known_by_its_broadcast(world: World) -> None:
    world.hear(state(version=1), 0.0)
    published = WeightsPublished(
        run_id="a",
        version=2,
        incarnation=1,
        step=2,
        folder="v2",
        full=(WeightFile(name="w", size_bytes=1, sha256="0" * 64),),
        fingerprint="f",
    )
    world.hear(delivery(published), 1.0)
    assert look(world, 1.0).run.version == 2


def test_another_run_of_the_same_name_takes_over(world: World) -> None:
    world.hear(state("a"), 0.0)
    world.hear(beat("old"), 0.0)
    world.hear(beat("new", run_id="b"), 0.5)
    world.hear(state("b"), 1.0)
    world.hear(beat("new", run_id="b"), 1.5)
    assert [one.name for one in look(world, 2.0).workers] == ["new"]


def test_what_cannot_be_read_is_nobodys_word(world: World) -> None:
    message = Heartbeat(role="rollout", worker="w", host="h", pid=1, state="running")
    world.hear(delivery(message, damage=True), 0.0)
    assert look(world, 0.0).workers == ()


def test_a_flood_of_names_is_bounded(world: World) -> None:
    for number in range(2100):
        world.hear(beat(f"w{number}"), 0.0)
    assert len(look(world, 0.0).workers) == 2048


def test_absurd_counters_add_up(world: World) -> None:
    for worker in ("rollout-1", "rollout-2"):
        counters = {"interruptions": 1e308, "tokens_generated": -1e308}
        world.hear(beat(worker, counters=counters, rollout={"engine": "e"}), 0.0)
        counters = {"interruptions": -1e308, "tokens_generated": 1e308}
        world.hear(beat(worker, counters=counters, rollout={"engine": "e"}), 2.0)
    told = Picture.of(look(world, 2.0)).to_json()
    assert told["rollouts"]["interruptions"] == -(2**64)
    assert told["rollouts"]["tokens_per_s"] == 2.0**64


def test_nothing_that_is_heard_steers_a_terminal(world: World) -> None:
    evil = "\x1b[31mred\x1b[0m\nline\u202eback\x00" + "x" * 5000
    world.hear(beat(evil[:4000], host=evil, waiting_for=evil, error=evil), 0.0)
    (worker,) = look(world, 0.0).workers
    for text in (worker.name, worker.host, worker.waiting_for, worker.error):
        assert text.isprintable()
        assert len(text) <= 400


def test_queues_come_with_limits_and_exact_counts(world: World) -> None:
    row = QueueRow(
        name="prompts",
        num_ready=9,
        num_unacked=2,
        num_consumers=3,
        ready_bytes=900,
        publish_rate=1.5,
        deliver_rate=2.5,
    )
    seen = look(world, 0.0, Told(rows=(row,), error=""), prompts=(4, 1), credits=(1, 1)).queues
    assert [queue.name for queue in seen] == ["credits", "prompts"]
    credits, prompts = seen
    assert (prompts.ready, prompts.unacknowledged, prompts.in_per_s) == (4, 2, 1.5)
    assert (credits.limit, prompts.limit) == ("16", "128")
    assert credits.unacknowledged is None


def test_a_policy_is_a_limit(world: World) -> None:
    row = QueueRow(
        name="prompts",
        num_ready=0,
        num_unacked=0,
        num_consumers=0,
        ready_bytes=0,
        publish_rate=0,
        deliver_rate=0,
        max_messages=7,
    )
    assert look(world, 0.0, Told(rows=(row,), error="")).queues[0].limit == "7"
