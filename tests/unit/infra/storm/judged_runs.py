"""Run folders made by hand, record by record, so that a breach of each kind can be planted."""

import base64
import contextlib
import json
from pathlib import Path

import numpy as np
import orjson

from consumers.trainer.books.balance import Rules
from consumers.trainer.books.ledger import Ledger, LedgerError
from infra.amqp.codec import checksum
from infra.runs.folder import RunFolder
from infra.runs.journal import Journal
from infra.runs.metrics import MetricsFile
from infra.storm.verdict import judge
from infra.weights.store import WeightStore
from schemas.config import RunConfig
from schemas.control import WeightsPublished
from schemas.journal import (
    Arrived,
    Batch,
    Closed,
    GroupsClosed,
    Issued,
    Opened,
    Published,
    Stepped,
)
from schemas.storm import StormReport
from tests.factories.published import NO_WEIGHTS

RUN_ID = "run-1"
NUM_PROMPT = 3


def config(root: Path, **changes) -> RunConfig:
    """Two members a group, two groups a step, three steps."""
    algorithm = {"group_size": 2, "groups_per_step": 2, "max_staleness": 1.0, "max_version_lag": 4}
    return RunConfig.model_validate(
        {
            "run": {"name": "judged", "dir": str(root), "steps": changes.pop("steps", 3)},
            "model": {"path": "unused"},
            "data": {"train": [{"path": "unused.jsonl"}]},
            "rollout": {"engine": changes.pop("engine", "simulated")},
            "reward": {"functions": [{"use": "exact_match"}]},
            "trainer": {"lr": 1e-3},
            "weights": changes.pop("weights", {}),
            "algorithm": algorithm | changes,
        }
    )


def body(rollout_id: str, reward: float, versions, *, purpose: str = "train") -> bytes:
    """The JSON of a trajectory with this many sampled tokens of these versions."""
    sampled = sum(count for _, count in versions)
    token_ids = np.arange(NUM_PROMPT + sampled, dtype="<i4") % 50
    logprobs = np.where(np.arange(NUM_PROMPT + sampled) < NUM_PROMPT, 0.0, -1.0).astype("<f4")
    group, index = rollout_id.split(".")
    end = NUM_PROMPT + sampled
    progress = {
        "num_prompt_tokens": NUM_PROMPT,
        "turns": [
            {"kind": "prompt", "start": 0, "stop": NUM_PROMPT},
            {"kind": "assistant", "start": NUM_PROMPT, "stop": end, "finish_reason": "stop"},
        ],
        "tokens": {
            "mask": [[0, NUM_PROMPT], [1, sampled]],
            "versions": [[-1, NUM_PROMPT], *[list(run) for run in versions]],
            "token_ids": base64.b64encode(token_ids.tobytes()).decode(),
            "logprobs": base64.b64encode(logprobs.tobytes()).decode(),
        },
    }
    rollout = {
        "rollout_id": rollout_id,
        "group": int(group),
        "index": int(index),
        "purpose": purpose,
        "row": 0,
        "status": "completed",
        "finish_reason": "stop",
        "worker": "w",
        "agent": "single_turn",
        "prompt_hash": "0",
        "reward_data": {},
        "progress": progress,
    }
    return orjson.dumps({"schema_version": 1, "reward": reward, "rollout": rollout})


class RunMaker:
    """Writes a journal, manifests, a checkpoint and metrics."""

    def __init__(self, root: Path, **changes) -> None:
        self.config = config(root, **changes)
        self.folder = RunFolder.of(self.config)
        self.folder.root.mkdir(parents=True)
        self.manifests = WeightStore.at(self.folder.weights(self.config)).manifests
        self.ledger = Ledger(Rules.of(self.config))
        self.journal = Journal(self.folder.journal, Opened(run_id=RUN_ID, incarnation=1, step=0))

    def note(self, record, data: bytes = b"") -> None:
        """Into the journal, and into the trainer's own ledger as far as it goes along."""
        where = self.journal.append(record, data)
        with contextlib.suppress(LedgerError, ValueError):
            self.ledger.apply(record, where)

    def restart(self, *, back_to=None) -> None:
        """A trainer takes over, from the end of the journal or from a place before it."""
        end = back_to or self.journal.end
        self.journal.close()
        opened = Opened(
            run_id=RUN_ID,
            incarnation=self.journal._incarnation + 1,
            step=0,
            previous_segment=end.segment,
            previous_bytes=end.offset,
        )
        self.journal = Journal(self.folder.journal, opened)

    def issue(self, *groups: int, attempt: int = 0, indexes=()) -> None:
        self.note(Issued(groups=groups, attempt=attempt, indexes=indexes))

    def arrive(self, group: int, index: int, reward: float, versions=((0, 5),), data=None) -> None:
        name = f"{group}.{index}"
        data = body(name, reward, versions) if data is None else data
        self.note(
            Arrived(
                type="Trajectory",
                message_id=name,
                rollout_id=name,
                group=group,
                index=index,
                purpose="train",
                reward=reward,
                oldest_version=versions[0][0],
                newest_version=versions[-1][0],
                num_tokens=NUM_PROMPT + sum(count for _, count in versions),
                headers={"checksum": checksum(data)},
            ),
            data,
        )

    def fail(self, group: int, index: int, attempt: int = 0) -> None:
        self.note(
            Arrived(
                type="Failure",
                message_id=f"{group}.{index}.dead",
                rollout_id=f"{group}.{index}",
                group=group,
                index=index,
                attempt=attempt,
                purpose="train",
                error="reward: no",
            )
        )

    def both(self, group: int, *, versions=((0, 5),), rewards=(0.0, 1.0)) -> None:
        """Both members come back."""
        for index, reward in enumerate(rewards):
            self.arrive(group, index, reward, versions)

    def close(self, group: int, end: str) -> None:
        self.note(GroupsClosed(closed=(Closed(group=group, end=end),)))

    def step(self, step: int, *groups: int, version: int, members=None) -> None:
        """Decide and take a step."""
        names = [f"{group}.{index}" for group in groups for index in (0, 1)]
        self.note(
            Batch(
                step=step,
                version=version,
                groups=groups,
                members=tuple(names if members is None else members),
                closed=tuple(Closed(group=group, end="trained") for group in groups),
                releases=len(groups),
            )
        )
        self.note(Stepped(step=step, loss=0.0, grad_norm=0.0, weights_sha256=f"hash{step}"))

    def store(
        self,
        version: int,
        step: int,
        *,
        incarnation: int = 1,
        run_id: str = RUN_ID,
        weights: str = "",
    ) -> None:
        """A manifest."""
        self.manifests.create(
            WeightsPublished(
                run_id=run_id,
                version=version,
                incarnation=incarnation,
                step=step,
                folder=f"v{version}",
                full=NO_WEIGHTS,
                fingerprint=weights or f"f{version}",
            )
        )

    def publish(self, version: int, step: int, *, weights: str = "") -> None:
        """A manifest, and the record of it."""
        self.store(version, step, weights=weights)
        fingerprint = weights or f"f{version}"
        self.note(Published(version=version, step=step, fingerprint=fingerprint))

    def checkpoint(self, step: int, **changes) -> None:
        """As the trainer would save it now."""
        folder = self.folder.checkpoints / f"step_{step}" / "state"
        folder.mkdir(parents=True)
        ledger = self.ledger.to_json() | changes.pop("ledger", {})
        extra = {"position": list(self.journal.end), "ledger": ledger}
        state = {"step": step, "weights_sha256": f"hash{step}", "extra": extra} | changes
        (folder / "state.json").write_text(json.dumps(state))

    def end(self, **changes) -> None:
        """The run's last line."""
        books = self.ledger.books()
        line = {"issued": books.issued, "open": books.open, "trained": books.trained}
        line |= {"filtered": books.filtered, "stale": books.stale, "dead": books.dead}
        named = {f"ledger/{name}": count for name, count in (line | changes).items()}
        MetricsFile(self.folder.metrics).append("end", named)

    def judged(self, faults=(), drained=(), undisturbed=None, due=0) -> StormReport:
        """The verdict on what lies there."""
        self.journal.close()
        return judge(self.config, faults, seed=7, drained=drained, undisturbed=undisturbed, due=due)


def begun(root: Path, **changes) -> RunMaker:
    """Two steps done, a group filtered, a member dead, a checkpoint; two groups open."""
    run = RunMaker(root, **changes)
    run.publish(0, 0)
    run.issue(0, 1, 2, 3)
    run.both(0)
    run.both(1, rewards=(0.5, 1.0))
    run.both(2, rewards=(1.0, 1.0))
    run.close(2, "filtered")
    run.issue(4)
    run.step(1, 0, 1, version=0)
    run.publish(1, 1)
    run.issue(5, 6)
    run.fail(3, 0)
    run.arrive(3, 1, 1.0)
    run.close(3, "dead")
    run.issue(7)
    run.arrive(4, 0, 0.0, ((0, 2), (1, 4)))
    run.arrive(4, 1, 1.0, ((1, 6),))
    run.both(5, versions=((1, 3),))
    run.step(2, 4, 5, version=1)
    run.checkpoint(2)
    run.publish(2, 2)
    return run


def finish(run: RunMaker) -> RunMaker:
    """The third and last step, on the groups that `begun` left open."""
    run.both(6, versions=((1, 2), (2, 2)))
    run.both(7, versions=((2, 9),))
    run.step(3, 6, 7, version=2)
    run.publish(3, 3)
    run.end()
    return run


def healthy(root: Path, **changes) -> RunMaker:
    """A whole run with nothing wrong."""
    return finish(begun(root, **changes))
