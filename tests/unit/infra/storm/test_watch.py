"""What the storm counts as work that flows again."""

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from infra.amqp.codec import encode
from infra.runs.folder import RunFolder
from infra.storm.watch import Seen, StepReader, Watch
from schemas.control import Heartbeat
from tests.factories.deliveries import delivery


class Beats:
    """Heartbeats as they come in; each is later than the one before."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def beat(self, worker: str, pid: int, **fields: Any) -> None:
        before = self._watch.latest.get(worker)
        values: dict[str, Any] = {"rollout_ids": (), "counters": {}, "version": 0} | fields
        at = 1e12 if before is None else before.at + 1
        self._watch.latest[worker] = Seen(at=at, pid=pid, **values)


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    return Watch(None, RunFolder(tmp_path))  # type: ignore[arg-type]


@pytest.fixture
def beats(watch: Watch) -> Beats:
    return Beats(watch)


def append_step(watch_folder: Path, step: int, *, kind: str = "step") -> None:
    with (watch_folder / "metrics.jsonl").open("ab") as file:
        file.write(orjson.dumps({"kind": kind, "step": step}) + b"\n")


def test_a_killed_rollout_worker_works_again_when_its_successor_holds_work(
    watch: Watch, beats: Beats
) -> None:
    again = watch.working_again(("rollout-1",), without=7)
    assert not again()
    beats.beat("rollout-1", 7, rollout_ids=("0.0",))  # sent before it was killed
    assert not again()
    beats.beat("rollout-1", 8)
    assert not again()
    beats.beat("rollout-1", 8, rollout_ids=("0.0",))
    assert again()


@pytest.mark.parametrize(
    ("worker", "counter"),
    [("reward-1", "scored"), ("reward-1", "failed"), ("producer-1", "credits")],
)
def test_a_counting_role_works_when_it_counts_more_than_at_first(
    watch: Watch, beats: Beats, worker: str, counter: str
) -> None:
    again = watch.working_again((worker,))
    beats.beat(worker, 7, counters={counter: 5.0})
    assert not again()
    beats.beat(worker, 7, counters={counter: 5.0})
    assert not again()
    beats.beat(worker, 8, counters={counter: 0.0})  # another process, which has done nothing yet
    assert not again()
    beats.beat(worker, 8, counters={counter: 1.0})
    assert again()


def test_the_trainer_works_when_it_makes_another_step(watch: Watch, tmp_path: Path) -> None:
    append_step(tmp_path, 4)
    again = watch.working_again(("trainer",))
    append_step(tmp_path, 3)  # taken again
    append_step(tmp_path, 4)
    append_step(tmp_path, 5, kind="eval")
    assert not again()
    append_step(tmp_path, 5)
    assert again()


def test_everybody_need_not_work_at_the_same_time(watch: Watch, beats: Beats) -> None:
    again = watch.working_again(("rollout-1", "rollout-2"))
    beats.beat("rollout-1", 1, rollout_ids=("0.0",))
    assert not again()
    beats.beat("rollout-1", 2)
    beats.beat("rollout-2", 3, rollout_ids=("0.1",))
    assert again()


def test_a_heartbeat_from_before_the_fault_says_nothing(watch: Watch) -> None:
    watch.latest["rollout-1"] = Seen(at=0.0, pid=1, rollout_ids=("0.0",), counters={}, version=0)
    assert not watch.working_again(("rollout-1",))()


def test_unsaved_tokens_are_those_of_the_killed_process(watch: Watch, beats: Beats) -> None:
    beats.beat("rollout-1", 7, tokens_unsaved=12)
    assert watch.tokens_unsaved("rollout-1", 7) == 12
    assert watch.tokens_unsaved("rollout-1", 8) == watch.tokens_unsaved("rollout-2", 7) == 0


async def test_what_a_heartbeat_says_is_seen(tmp_path: Path) -> None:
    """The storm reads what a rollout worker really sends."""
    beat = Heartbeat(
        role="rollout",
        worker="rollout-1",
        host="h",
        pid=7,
        state="running",
        version=3,
        rollout_ids=("0.0",),
        tokens_unsaved=12,
        counters={"swaps": 2.0},
    )
    envelope, body = encode(beat, app_id="x", correlation_id="x", headers={})

    async def events() -> AsyncIterator[Any]:
        yield delivery("", envelope, body)

    broker: Any = SimpleNamespace(events=events)
    watch = Watch(broker, RunFolder(tmp_path))
    await watch.run()
    seen = watch.latest["rollout-1"]
    assert (seen.pid, seen.version, seen.rollout_ids) == (7, 3, ("0.0",))
    assert dict(seen.counters) == {"swaps": 2.0}
    assert watch.tokens_unsaved("rollout-1", 7) == 12


def test_steps_are_read_as_far_as_lines_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    reader = StepReader(path)
    assert reader.newest() == 0
    path.write_bytes(b'{"kind":"step","step":3}\n{"torn\n{"kind":"step","st')
    assert reader.newest() == 3
    with path.open("ab") as file:
        file.write(b'ep":4}\n')
    assert reader.newest() == 4


def test_a_fleet_that_is_not_there_is_empty(watch: Watch, tmp_path: Path) -> None:
    assert watch.fleet() == {}
    (tmp_path / "fleet.json").write_text('{"trainer": 5}')
    assert watch.fleet() == {"trainer": 5}
