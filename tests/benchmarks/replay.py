"""Resuming: how long it takes to go through a journal, beside how long the steps took at first."""

import asyncio
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from consumers.trainer.arriving.screening import screen_trajectory
from consumers.trainer.arriving.shelf import Shelf
from consumers.trainer.batch.groups import Group
from consumers.trainer.learn.learner import Learner
from consumers.trainer.learn.policy import Policy
from consumers.trainer.recovery import recover
from consumers.trainer.stepping import decided, stepped, take_step
from infra.amqp.message import Delivery
from infra.runs.folder import RunFolder
from infra.runs.journal import Journal
from infra.runs.journal_reader import JournalReader
from schemas.config import RunConfig
from schemas.journal import Confirmed, Issued, Opened, Published
from schemas.work import Credit, Trajectory
from tests.factories.contexts import role_context
from tests.factories.deliveries import delivery
from tests.factories.models import build
from tests.factories.world import headers_of, message_of, trajectory

GROUP_SIZE, GROUPS_PER_STEP = 4, 4


def measure(num_steps: int) -> dict[str, float]:
    """Seconds of the first time (taken in, journaled, stepped; no waiting, no weights written),
    seconds of going through the same journal again, and their ratio."""
    with tempfile.TemporaryDirectory() as root:
        config = _config(Path(root), num_steps)
        first_s, sha256 = asyncio.run(_first(config))
        again_s, again = asyncio.run(_again(config))
    assert again == sha256
    return {"s at first": first_s, "s again": again_s, "at first / again": first_s / again_s}


def _config(root: Path, num_steps: int) -> RunConfig:
    build(root / "model", tied=True, seed=0)
    return RunConfig.model_validate(
        {
            "run": {"name": "r", "dir": str(root / "runs"), "steps": num_steps},
            "model": {"path": str(root / "model"), "dtype": "float32"},
            "data": {"train": [{"path": "train.jsonl"}]},
            "reward": {"functions": [{"use": "exact_match"}]},
            "algorithm": {"group_size": GROUP_SIZE, "groups_per_step": GROUPS_PER_STEP},
            "trainer": {"lr": 1e-3, "warmup_steps": 1},
        }
    )


async def _first(config: RunConfig) -> tuple[float, str]:
    learner = Learner(config, Policy.load(Path(config.model.path)))
    journal = Journal(RunFolder.of(config).journal, Opened(run_id="r", incarnation=1, step=0))
    journal.append(Published(version=0, step=0, fingerprint="f"))
    messages = [list(_messages(step)) for step in range(1, config.run.steps + 1)]
    started = time.perf_counter()
    for step, deliveries in enumerate(messages, start=1):
        numbers = tuple(range((step - 1) * GROUPS_PER_STEP, step * GROUPS_PER_STEP))
        journal.append(Issued(groups=numbers, min_version=step - 1))
        journal.append(Confirmed(groups=numbers))
        members: dict[int, list[Trajectory]] = {number: [] for number in numbers}
        for one in deliveries:
            screened = screen_trajectory(one, run_id="r", newest_version=step - 1, vocab_size=10**6)
            assert screened.trajectory is not None
            journal.append(screened.record, one.body)
            members[screened.record.group].append(screened.trajectory)
        groups = [Group.of(number, members[number]) for number in numbers]
        journal.append(decided(groups, step=step, version=step - 1))
        await journal.commit()
        result = take_step(learner, groups, step=step, version=step - 1)
        journal.append(stepped(result))
        journal.append(Published(version=step, step=step, fingerprint=f"f{step}"))
        await journal.commit()
    journal.close()
    return time.perf_counter() - started, learner.policy.sha256()


def _messages(step: int) -> Iterator[Delivery]:
    for number in range((step - 1) * GROUPS_PER_STEP, step * GROUPS_PER_STEP):
        credit = Credit(
            group=number, indexes=(0,), dataset_fingerprint="", seed=0, group_size=GROUP_SIZE
        )
        for index in range(GROUP_SIZE):
            scored = trajectory(credit, index, version=step - 1, reward=float(index % 2))
            message = message_of(scored, headers_of(credit, index, run_id="r"), app_id="")
            yield delivery("trajectories", message.envelope, message.body)


async def _again(config: RunConfig) -> tuple[float, str]:
    folder = RunFolder.of(config)
    ctx = role_context(config, role="trainer")
    learner = Learner(config, Policy.load(Path(config.model.path)))
    reader = JournalReader(folder.journal)
    started = time.perf_counter()
    await recover(ctx, learner, reader, Shelf(reader))
    return time.perf_counter() - started, learner.policy.sha256()
