"""A journal cut anywhere gives the ledger and the weights of that moment."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from consumers.trainer.arriving.screening import screen_trajectory
from consumers.trainer.arriving.shelf import Shelf
from consumers.trainer.batch.groups import Group
from consumers.trainer.books.balance import Rules
from consumers.trainer.books.ledger import Ledger
from consumers.trainer.learn.learner import Learner, StepFailed
from consumers.trainer.learn.policy import Policy
from consumers.trainer.recovery import Recovered, StoppedWhileResuming, recover
from consumers.trainer.stepping import decided, stepped, take_step
from infra.roles.context import RoleContext
from infra.roles.errors import ConfigError, StepFailedTwice
from infra.runs.folder import RunFolder
from infra.runs.journal import Journal
from infra.runs.journal_reader import Entry, JournalCorrupt, JournalReader
from schemas.config import RunConfig
from schemas.journal import (
    Arrived,
    Batch,
    Confirmed,
    Issued,
    Opened,
    Published,
    Skipped,
    Stepped,
)
from schemas.work import Credit, Trajectory
from tests.factories.contexts import role_context
from tests.factories.deliveries import delivery
from tests.factories.models import build
from tests.factories.world import VOCAB_SIZE, headers_of, message_of, trajectory

NUM_STEPS = 3
GROUP_SIZE = 2


def context(config: RunConfig) -> RoleContext:
    return role_context(config, role="trainer")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """One group of two per step; float32."""
    root = tmp_path_factory.mktemp("recovery")
    build(root / "model", tied=True, seed=0)
    return RunConfig.model_validate(
        {
            "run": {"name": "r", "dir": str(root / "runs"), "steps": NUM_STEPS},
            "model": {"path": str(root / "model"), "dtype": "float32"},
            "data": {"train": [{"path": "train.jsonl"}]},
            "reward": {"functions": [{"use": "exact_match"}]},
            "algorithm": {"group_size": GROUP_SIZE, "groups_per_step": 1},
            "trainer": {"lr": 1e-3, "warmup_steps": 1},
        }
    )


def learner_of(config: RunConfig) -> Learner:
    """As a trainer starts with."""
    return Learner(config, Policy.load(Path(config.model.path)))


def arrival(group: int, index: int, version: int) -> tuple[Arrived, bytes, Trajectory]:
    """A record as the intake writes it."""
    credit = Credit(
        group=group, indexes=(0, 1), dataset_fingerprint="", seed=0, group_size=GROUP_SIZE
    )
    scored = trajectory(credit, index, version=version, reward=float(index))
    message = message_of(scored, headers_of(credit, index, run_id="r"), app_id="")
    screened = screen_trajectory(
        delivery("trajectories", message.envelope, message.body),
        run_id="r",
        newest_version=version,
        vocab_size=VOCAB_SIZE,
    )
    return screened.record, message.body, scored


@pytest.fixture(scope="module")
def written(config: RunConfig) -> RunFolder:
    """The journal of a run of three steps that nothing disturbed."""
    folder, learner = RunFolder.of(config), learner_of(config)
    journal = Journal(folder.journal, Opened(run_id="r", incarnation=1, step=0))
    journal.append(Published(version=0, step=0, fingerprint="f0"))
    for step in range(1, NUM_STEPS + 1):
        number = step - 1
        journal.append(Issued(groups=(number,)))
        journal.append(Confirmed(groups=(number,)))
        members = []
        for index in (1, 0):
            record, body, scored = arrival(number, index, version=number)
            journal.append(record, body)
            members.append(scored)
        groups = [Group.of(number, members)]
        journal.append(decided(groups, step=step, version=number))
        journal.append(stepped(take_step(learner, groups, step=step, version=number)))
        journal.append(Published(version=step, step=step, fingerprint=f"f{step}"))
    journal.close()
    return folder


async def resume(config: RunConfig, *, skip_step: int | None = None) -> tuple[Recovered, Learner]:
    """What a trainer does first."""
    ctx, learner = context(config), learner_of(config)
    reader = JournalReader(ctx.folder.journal)
    return await recover(ctx, learner, reader, Shelf(reader), skip_step=skip_step), learner


def moved(config: RunConfig, folder: Path) -> RunConfig:
    """The same run in another folder."""
    return config.model_copy(update={"run": config.run.model_copy(update={"dir": str(folder)})})


def cut_copy(config: RunConfig, written: RunFolder, tmp_path: Path, length: int) -> RunConfig:
    """The run as it lay on disk when the journal had `length` bytes."""
    copy = moved(config, tmp_path / str(length))
    folder = RunFolder.of(copy)
    folder.journal.mkdir(parents=True)
    (segment,) = written.journal.iterdir()
    (folder.journal / segment.name).write_bytes(segment.read_bytes()[:length])
    return copy


def altered_copy(
    config: RunConfig,
    written: RunFolder,
    tmp_path: Path,
    kind: type[Batch | Stepped],
    **changes: Any,
) -> RunConfig:
    """The whole run, but for one record of step 2."""
    copy = moved(config, tmp_path)
    entries = list(JournalReader(written.journal).records())
    journal = Journal(RunFolder.of(copy).journal, entries[0].record)
    for entry in entries[1:]:
        record = entry.record
        if isinstance(record, kind) and record.step == 2:
            record = record.model_copy(update=changes)
        journal.append(record, entry.body)
    journal.close()
    return copy


def expected_of(entries: list[Entry], config: RunConfig) -> dict[str, Any]:
    """The ledger by plain application."""
    ledger = Ledger(Rules.of(config))
    for entry in entries:
        ledger.apply(entry.record, entry.position)
    return ledger.to_json()


async def test_any_prefix_gives_the_ledger_and_the_weights_of_that_moment(
    config: RunConfig, written: RunFolder, tmp_path: Path
) -> None:
    entries = list(JournalReader(written.journal).records())
    start_sha = learner_of(config).policy.sha256()
    hashes = {e.record.step: e.record.weights_sha256 for e in entries if _is(e, Stepped)}
    for count in range(1, len(entries) + 1):
        known = entries[:count]
        whole, end = known[-1].end.offset, entries[-1].end.offset
        torn = min(whole + 11, end) if count < len(entries) else whole
        for length in {whole, torn}:
            copy = cut_copy(config, written, tmp_path, length)
            recovered, learner = await resume(copy)
            assert recovered.ledger.to_json() == expected_of(known, config)
            assert recovered.ledger.books().balanced
            assert recovered.end.offset == whole
            step = sum(_is(entry, Batch) for entry in known)
            assert learner.step_done == step
            assert learner.policy.sha256() == hashes.get(step, start_sha)
            num_done = sum(_is(entry, Stepped) for entry in known)
            assert (recovered.unfinished is not None) == (step > num_done)
            arrived = [line["arrived/trajectories"] for line in recovered.lines.values()]
            assert arrived == [GROUP_SIZE] * step
            shutil.rmtree(RunFolder.of(copy).root)


async def test_other_weights_are_said(
    config: RunConfig, written: RunFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A journal whose hash was of another machine: the run goes on, with a warning."""
    copy = altered_copy(config, written, tmp_path, Stepped, weights_sha256="0" * 64)
    recovered, _ = await resume(copy)
    assert recovered.ledger.step == NUM_STEPS
    assert "step 2 taken again gives OTHER weights" in caplog.text
    assert "step 3 taken again gives OTHER" not in caplog.text


async def test_a_batch_without_its_members_is_refused(
    config: RunConfig, written: RunFolder, tmp_path: Path
) -> None:
    copy = altered_copy(config, written, tmp_path, Batch, members=("1.0", "1.7"))
    with pytest.raises(JournalCorrupt, match=r"(?s)step 2 was trained on 2 rollouts.*on_failure"):
        await resume(copy)


def _is(entry: Entry, kind: type) -> bool:
    return isinstance(entry.record, kind)


def cut_behind_batch(config: RunConfig, written: RunFolder, tmp_path: Path, step: int) -> RunConfig:
    """A trainer died while it took a step: the batch is decided, the step is not done."""
    entries = list(JournalReader(written.journal).records())
    (place,) = (e.end.offset for e in entries if _is(e, Batch) and e.record.step == step)
    return cut_copy(config, written, tmp_path, place)


def failing(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """The recipe's own objective does not like this step."""
    real = Learner.step

    def take(self: Learner, batch: Any, number: int, **rest: Any) -> Any:
        if number == step:
            raise ZeroDivisionError("in the objective")
        return real(self, batch, number, **rest)

    monkeypatch.setattr(Learner, "step", take)


async def test_a_step_that_fails_in_two_trainers_stops_with_its_name(
    config: RunConfig, written: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = cut_behind_batch(config, written, tmp_path, 3)
    failing(monkeypatch, 3)
    with pytest.raises(StepFailed, match="step 3 failed: ZeroDivisionError: in the objective"):
        await resume(copy)
    with pytest.raises(
        StepFailedTwice, match=r"(?s)step 3 failed again: ZeroDiv.*--skip-step 3"
    ) as info:
        await resume(copy)
    assert info.value.exit_code == 8
    monkeypatch.undo()
    recovered, learner = await resume(copy)
    assert recovered.unfinished is not None and learner.step_done == 3
    failing(monkeypatch, 3)
    with pytest.raises(StepFailed, match="step 3 failed: "):
        await resume(copy)


async def test_a_step_that_was_taken_before_is_not_offered_to_be_skipped(
    config: RunConfig, written: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = cut_copy(config, written, tmp_path, 10**9)
    failing(monkeypatch, 2)
    with pytest.raises(StepFailed):
        await resume(copy)
    with pytest.raises(StepFailedTwice, match=r"step 2 failed again") as info:
        await resume(copy)
    assert "it was taken before" in str(info.value) and "--skip-step" not in str(info.value)


async def test_a_step_can_be_given_up(
    config: RunConfig, written: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights stay as they were before it, and every later start leaves it out as well."""
    copy = cut_behind_batch(config, written, tmp_path, 3)
    failing(monkeypatch, 3)
    recovered, learner = await resume(copy, skip_step=3)
    assert recovered.skipped is not None and recovered.skipped.groups == (2,)
    assert recovered.unfinished is None and learner.step_done == 3
    hashes = {
        e.record.step: e.record.weights_sha256
        for e in JournalReader(written.journal).records()
        if _is(e, Stepped)
    }
    assert learner.policy.sha256() == hashes[2]

    folder = RunFolder.of(copy)
    opened = Opened(
        run_id="r",
        incarnation=2,
        step=0,
        previous_segment=recovered.end.segment,
        previous_bytes=recovered.end.offset,
    )
    journal = Journal(folder.journal, opened)
    journal.append(Skipped(step=3, groups=(2,), reason="nan"))
    journal.close()
    for skip_step in (None, 3):
        recovered, learner = await resume(copy, skip_step=skip_step)
        assert learner.policy.sha256() == hashes[2]
        books = recovered.ledger.books()
        assert (books.trained, books.dead, books.balanced) == (2, 1, True)


async def test_a_step_that_was_given_up_before_does_not_hold_up_the_next(
    config: RunConfig, written: RunFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A trainer that died is started again with the same words."""
    copy = cut_behind_batch(config, written, tmp_path, 2)
    recovered, learner = await resume(copy, skip_step=1)
    assert "step 1 was taken or given up before: nothing to skip" in caplog.text
    assert recovered.skipped is None and recovered.unfinished is not None
    assert (recovered.unfinished.step, learner.step_done) == (2, 2)


@pytest.mark.parametrize("waits", [True, False])
async def test_a_step_that_does_not_exist_yet_cannot_be_given_up(
    config: RunConfig, written: RunFolder, tmp_path: Path, waits: bool
) -> None:
    copy = (
        cut_behind_batch(config, written, tmp_path, 3)
        if waits
        else cut_copy(config, written, tmp_path, 10**9)
    )
    with pytest.raises(ConfigError, match=r"--skip-step 4: .*the newest one is step 3"):
        await resume(copy, skip_step=4)


async def test_resuming_leaves_the_loop_free_and_can_be_stopped(
    config: RunConfig, written: RunFolder, tmp_path: Path
) -> None:
    """Heartbeats go on while the journal is replayed; SIGTERM does not wait for its end."""
    copy = cut_copy(config, written, tmp_path, 10**9)
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.005)
            ticks += 1

    ticking = asyncio.create_task(tick())
    ctx, learner = context(copy), learner_of(copy)
    reader = JournalReader(ctx.folder.journal)
    before = ticks
    await recover(ctx, learner, reader, Shelf(reader))
    assert ticks > before
    assert ctx.known_run_id == "r"  # commands for the run reach it while it resumes
    ticking.cancel()
    ctx.stop.set()
    with pytest.raises(StoppedWhileResuming):
        await recover(ctx, learner_of(copy), reader, Shelf(reader))
