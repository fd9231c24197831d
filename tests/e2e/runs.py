"""Small runs of `run.py` in real processes: recipes, roles, and what they leave behind."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from infra.recipes.demo.task import split
from infra.runs.journal_reader import Entry, JournalReader
from infra.runs.metrics import read_metrics
from schemas.journal import Arrived, Batch, Closed, GroupsClosed
from tests.processes import popen

ROOT = Path(__file__).resolve().parents[2]
FRONT_DOOR = ROOT / "run.py"
BROKER = "WARREN_BROKER_URL"
RECIPE = """
[run]
name = "{name}"
steps = {steps}
[model]
path = "{model}"
dtype = "float32"
[data]
train = [{{ path = "train.jsonl" }}]
[rollout]
workers = 2
slots = 8
agent = "tool"
tools = ["{tool}"]
parser = "infra.recipes.demo.calls:CompactCalls"
max_prompt_tokens = 16
max_response_tokens = 120
max_turn_tokens = 18
max_turns = 2
tool_timeout = 2.0
[reward]
functions = [{{ use = "{reward}" }}]
timeout = {reward_timeout}
[algorithm]
group_size = 4
groups_per_step = 2
max_staleness = 1.0
[trainer]
lr = 1e-4
[checkpoint]
every = 2
[broker]
heartbeat = 5
"""
R = TypeVar("R")


def rows(count: int) -> list[dict[str, Any]]:
    """Dataset rows of the demo's task."""
    return [{"prompt": p.prompt, "ground_truth": p.answer} for p in split()[0][:count]]


def write_recipe(
    folder: Path,
    name: str,
    *,
    model: Path | str,
    data: Sequence[dict[str, Any]] | None = None,
    steps: int = 6,
    tool: str = "infra.recipes.demo.tool:add",
    reward: str = "tests.e2e.plugs:alternating",
    reward_timeout: float = 60.0,
) -> Path:
    """A recipe and its dataset in `folder`, which is where `run.py` is started."""
    lines = rows(64) if data is None else data
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    path = folder / "recipe.toml"
    path.write_text(
        RECIPE.format(
            name=name,
            steps=steps,
            model=model,
            tool=tool,
            reward=reward,
            reward_timeout=reward_timeout,
        )
    )
    return path


@dataclass
class Running:
    """A `run.py` process; its output goes to a file."""

    process: "subprocess.Popen[str]"
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def output(self) -> str:
        """What it has said so far."""
        return self.log.read_text()

    def says(self, text: str) -> bool:
        """Whether it has said this by now."""
        return text in self.output()

    def exit_code(self, timeout_s: float = 200.0) -> int:
        """Wait for its end."""
        return self.process.wait(timeout=timeout_s)


def start(folder: Path, *arguments: str, url: str = "", gate: Path | None = None) -> Running:
    """Start `run.py ...` in `folder`."""
    environment = {key: value for key, value in os.environ.items() if key != BROKER}
    environment |= {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    environment |= {BROKER: url} if url else {}
    environment |= {"WARREN_TEST_GATE": str(gate)} if gate else {}
    log = folder / f"output-{len(list(folder.glob('output-*')))}-{arguments[0]}.txt"
    with log.open("w") as output:
        process = popen(
            [sys.executable, str(FRONT_DOOR), *arguments],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    return Running(process, log)


def finish(folder: Path, *arguments: str, url: str = "") -> tuple[int, str]:
    """Run `run.py ...` to its end: exit code and output."""
    running = start(folder, *arguments, url=url)
    return running.exit_code(), running.output()


def eventually(condition: Callable[[], R], what: str, timeout_s: float = 150.0) -> R:
    """Wait until it holds; what it returned."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.05)
    return found


class RunRecord:
    """What a run folder tells of its run."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def entries(self) -> Iterator[Entry]:
        """The journal."""
        return JournalReader(self.root / "journal").records()

    def records(self) -> Iterator[Any]:
        """The journal without the messages' bytes."""
        return (entry.record for entry in self.entries())

    def num_steps(self) -> int:
        """Steps in `metrics.jsonl`, each counted once."""
        path = self.root / "metrics.jsonl"
        return len({line["step"] for line in read_metrics(path, "step")}) if path.exists() else 0

    def run_id(self) -> str:
        """From the newest manifest; empty while there is none."""
        manifests = sorted((self.root / "weights" / "manifests").glob("*.json"))
        return json.loads(manifests[-1].read_text())["run_id"] if manifests else ""

    def broker_pid(self) -> int:
        """Of the private node."""
        return int((self.root / "broker" / "rabbit.pid").read_text())

    def closed(self) -> list[Closed]:
        """How each group ended, in order."""
        ends: list[Closed] = []
        for record in self.records():
            if isinstance(record, Batch | GroupsClosed):
                ends += record.closed
        return ends

    def end_of(self, group: int) -> str:
        """`trained`, `filtered`, `stale` or `dead`."""
        return next(closed.end for closed in self.closed() if closed.group == group)

    def errors(self) -> dict[str, str]:
        """Rollout id -> error, of the failures that the trainer heard of."""
        return {
            record.rollout_id: record.error
            for record in self.records()
            if isinstance(record, Arrived) and record.error
        }

    def check_whole(self, *, steps: int) -> dict[str, Any]:
        """The run is complete, every group ended once, nothing was trained twice; the end line."""
        assert self.num_steps() == steps
        (end,) = read_metrics(self.root / "metrics.jsonl", "end")
        assert end["ledger/balanced"] is True
        assert end["ledger/issued"] == sum(
            end[f"ledger/{name}"] for name in ("trained", "filtered", "stale", "dead", "open")
        )
        groups = Counter(closed.group for closed in self.closed())
        assert set(groups.values()) == {1}
        ends = Counter(closed.end for closed in self.closed())
        for name in ("trained", "filtered", "stale", "dead"):
            assert ends[name] == end[f"ledger/{name}"], name
        batches = {record.step: record for record in self.records() if isinstance(record, Batch)}
        assert sorted(batches) == list(range(1, steps + 1))
        members = Counter(member for batch in batches.values() for member in batch.members)
        assert set(members.values()) == {1}
        return end
