"""A run into whose queues all that it recorded is replayed comes out as if nobody had.

On policy and with an engine that computes nothing, a run repeats bit for bit: its twin, which was
left alone, tells what weights, batches and books must be.
"""

import json
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from infra.amqp.admin import Management
from infra.amqp.topology import WORK_QUEUES
from infra.amqp.url import management_url
from infra.runs.metrics import read_metrics
from producers.replay.dump import from_line, to_line
from schemas.journal import Arrived, Batch, Late
from tests.e2e.plugs import FREE_STEPS
from tests.e2e.runs import RunRecord, eventually, finish, start, write_recipe

pytestmark = [pytest.mark.broker, pytest.mark.timeout(500)]
STEPS = 6
SETTINGS = (
    "rollout.engine=simulated",
    "rollout.engine_options={mean_tokens = 10, token_s = 0.005}",
    "algorithm.max_staleness=0",
    'data.eval=[{path = "eval.jsonl"}]',
    "eval.every=2",
    "eval.prompts=4",
)
SAID = "what is replayed is acknowledged here and counts nowhere"


@dataclass(frozen=True)
class Outcome:
    """What must not change. Attributes are by version, step, and evaluated version."""

    weights: dict[int, str]
    batches: dict[int, tuple[str, ...]]
    evaluations: dict[int, float]
    books: dict[str, Any]


def outcome(record: RunRecord) -> Outcome:
    """Of a finished run."""
    end = record.check_whole(steps=STEPS)
    manifests = [
        json.loads(path.read_text())
        for path in (record.root / "weights" / "manifests").glob("*.json")
    ]
    batches = (one for one in record.records() if isinstance(one, Batch))
    evaluations = read_metrics(record.root / "metrics.jsonl", "eval")
    return Outcome(
        weights={one["version"]: one["fingerprint"] for one in manifests},
        batches={batch.step: tuple(batch.members) for batch in batches},
        evaluations={line["version"]: line["eval/reward"] for line in evaluations},
        books={name: value for name, value in end.items() if name.startswith("ledger/")},
    )


def drawn_out(dump: Path) -> Path:
    """A dump of the trajectories in `dump`, a minute between one and the next."""
    recorded = [from_line(line, where=str(dump)) for line in dump.read_bytes().splitlines()]
    lines = [
        to_line(replace(one, envelope=replace(one.envelope, timestamp=60 * number)))
        for number, one in enumerate(one for one in recorded if one.envelope.type == "Trajectory")
    ]
    assert len(lines) > 1
    path = dump.with_name("drawn-out.jsonl")
    path.write_bytes(b"".join(lines))
    return path


@dataclass
class World:
    """A recipe, and a broker that outlives its runs."""

    folder: Path
    recipe: str
    url: str

    def up(self, name: str, gate: Path) -> Any:
        """Start a run."""
        words = ("up", self.recipe, f"run.name={name}", *SETTINGS)
        return start(self.folder, *words, url=self.url, gate=gate)

    def replay(self, *words: str) -> str:
        """Replay from run `live`; what was said."""
        code, said = finish(
            self.folder, "replay", "queue", "--run", "runs/live", *words, url=self.url
        )
        assert code == 0, said
        return said

    def depths(self) -> dict[str, int]:
        """Messages of the live run, ready or not acknowledged, by queue."""
        rows = Management(management_url(self.url)).queues("live")
        return {row.name: row.num_ready + row.num_unacked for row in rows}


@pytest.fixture
def world(tmp_path: Path, untaught_folder: Path, broker_url: str) -> World:
    recipe = write_recipe(
        tmp_path, "live", model=untaught_folder, steps=STEPS, reward="tests.e2e.plugs:gated",
        reward_timeout=300,
    )  # fmt: skip
    (tmp_path / "eval.jsonl").write_bytes((tmp_path / "train.jsonl").read_bytes())
    return World(tmp_path, str(recipe), broker_url)


def test_replays_change_neither_ledger_nor_journal_nor_weights(world: World) -> None:
    gate, record = world.folder / "gate", RunRecord(world.folder / "runs" / "live")
    live = world.up("live", gate)
    eventually(lambda: record.num_steps() >= FREE_STEPS, "the first steps")

    dump = world.folder / "recorded.jsonl"
    world.replay("--to-file", str(dump))
    kinds = {json.loads(line)["type"] for line in dump.read_text().splitlines()}
    assert kinds >= {"Credit", "RolloutTask", "Rollout", "Trajectory"}
    slow = ("--from-file", str(drawn_out(dump)), "--to-queue", "trajectories", "--speed", "0.01")
    killed = start(world.folder, "replay", "queue", "--run", "runs/live", *slow, url=world.url)
    eventually(lambda: live.says(SAID), "the first replay to reach the trainer")
    killed.process.kill()
    assert killed.exit_code() == -signal.SIGKILL, killed.output()
    assert not killed.says("sent to")
    world.replay("--from-file", str(dump), "--to-queue", "original")
    for queue in (*WORK_QUEUES, "failures", "dead_letters"):
        world.replay("--from-file", str(dump), "--to-queue", queue, "--count", "40")
    num_recorded = len(dump.read_text().splitlines())
    gate.touch()
    assert live.exit_code() == 0, live.output()

    again = world.folder / "again.jsonl"
    world.replay("--to-file", str(again))
    recorded = [json.loads(line) for line in again.read_text().splitlines()]
    assert len(recorded) > num_recorded
    assert not [line for line in recorded if "replay" in line["headers"]]
    arrived = [one for one in record.records() if isinstance(one, Arrived)]
    assert len({(one.rollout_id, one.type) for one in arrived}) == len(arrived)
    assert not [one for one in record.records() if isinstance(one, Late)]
    assert not [one for one in arrived if one.error]

    twin = world.up("twin", gate)
    assert twin.exit_code() == 0, twin.output()
    assert outcome(record) == outcome(RunRecord(world.folder / "runs" / "twin"))
