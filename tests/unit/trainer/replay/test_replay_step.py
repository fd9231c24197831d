"""`run.py replay step`: what was recorded is what comes out, or the difference is named."""

import hashlib
import json
import shutil
from argparse import ArgumentParser
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from consumers.trainer.learn.learner import StepResult
from consumers.trainer.replay.command import add_arguments, run
from consumers.trainer.replay.compare import compare
from consumers.trainer.replay.what_if import CHANGEABLE
from infra.observe.columns import trimmed
from infra.roles.errors import ConfigError, WarrenError
from infra.runs.folder import RunFolder
from infra.runs.frames import encode_frame
from infra.runs.journal_reader import Entry, JournalReader, RecordCorrupt
from infra.runs.metrics import MetricsFile
from schemas.config import AlgorithmSection, TrainerSection
from schemas.journal import Arrived, Opened, Stepped
from tests.factories.models import build
from tests.factories.stepped_runs import SteppedRun, small_recipe


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("replayed")


@pytest.fixture(scope="module")
def written(root: Path) -> RunFolder:
    """Six steps of three trainers: the third is skipped, the fourth was left undone by the first
    trainer and taken by the second, under a recipe that it shares with nobody."""
    config = small_recipe(root)
    other = small_recipe(root, trainer={"lr": 2e-3}, algorithm={"clip_high": 0.1})
    made = SteppedRun(config).open().step().step().checkpoint().skip()
    made.open().step()
    return made.open(other).step().checkpoint().step().close()


@pytest.fixture
def folder(written: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy to harm."""
    shutil.copytree(written.root, tmp_path / "copy")
    return RunFolder(tmp_path / "copy")


def replay(folder: RunFolder, *words: str) -> int:
    parser = ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args([*words, "--run", str(folder.root)]))


def told(folder: RunFolder, *words: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What `--json` says, with the exit code."""
    capsys.readouterr()
    code = replay(folder, *words, "--json")
    return {**json.loads(capsys.readouterr().out), "code": code}


def entries(folder: RunFolder) -> list[Entry]:
    return list(JournalReader(folder.journal).records())


def rewrite(folder: RunFolder, entry: Entry, record: Any = None, body: bytes | None = None) -> None:
    """Put another record of the same length in the place of one, its frame's checksum right."""
    path = folder.journal / entry.position.segment
    header = (record or entry.record).model_dump_json().encode()
    frame = encode_frame(header, entry.body if body is None else body)
    data = bytearray(path.read_bytes())
    assert len(frame) == entry.end.offset - entry.position.offset
    data[entry.position.offset : entry.end.offset] = frame
    path.write_bytes(data)


def stepped_in(folder: RunFolder, step: int) -> tuple[Entry, Stepped]:
    (found,) = [
        (entry, entry.record)
        for entry in entries(folder)
        if isinstance(entry.record, Stepped) and entry.record.step == step
    ]
    return found


def files_of(folder: RunFolder) -> dict[str, tuple[str, int]]:
    return {
        str(path): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in folder.root.rglob("*")
        if path.is_file()
    }


def test_every_step_is_bit_for_bit_the_recorded_one(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """Through three trainers, two recipes and a skipped step; the folder stays as it is."""
    before = files_of(folder)
    said = told(folder, "all", capsys=capsys)
    assert (said["code"], said["equal"], said["base"]) == (0, True, "the starting model")
    assert [step["step"] for step in said["steps"]] == [1, 2, 4, 5, 6]
    assert all(step["bitwise"] for step in said["steps"])
    assert [one["step"] for one in said["skipped"]] == [3]
    assert said["recorded_by"] == ["warren of old"] and said["code_version"]
    (note,) = said["notes"]
    assert "trainer 3 went on behind step 4 with trainer.lr 0.001 -> 0.002" in note
    recorded = [e.record for e in entries(folder) if isinstance(e.record, Stepped)]
    assert [step["replayed"]["weights_sha256"] for step in said["steps"]] == [
        record.weights_sha256 for record in recorded
    ]
    assert said["steps"][0]["members"] == ["0.0", "0.1"]
    assert said["steps"][0]["groups"] == [0] and said["steps"][0]["num_tokens"] > 0
    assert files_of(folder) == before


@pytest.mark.parametrize(
    ("step", "base"), [("1", 0), ("2", 0), ("4", 2), ("5", 2), ("6", 5), ("4-6", 2), ("1-2", 0)]
)
def test_a_step_begins_at_the_newest_checkpoint_before_it(
    folder: RunFolder, capsys: pytest.CaptureFixture[str], step: str, base: int
) -> None:
    said = told(folder, step, capsys=capsys)
    assert (said["code"], said["base_step"]) == (0, base)
    assert all(one["bitwise"] for one in said["steps"])


def test_the_table_is_for_people(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay(folder, "2-4") == 0
    said = capsys.readouterr()
    (record,) = [
        e.record for e in entries(folder) if isinstance(e.record, Stepped) and e.record.step == 4
    ]
    for part in (
        "run r · steps 2-4 from the starting model",
        f"on cpu, {torch.get_num_threads()} thread",
        f"{record.loss:.8g}",
        record.weights_sha256[:12],
        "given up: loss is nan\\x1b[31m",
        "2 steps: equal, bit for bit",
    ):
        assert part in said.out, said.out
    assert "step 1 on the way: equal" in said.err
    assert "\x1b" not in said.out
    assert said.out == trimmed(said.out)
    assert replay(folder, "4") == 0
    assert "members  3.0 3.1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("0",), "no steps 0"),
        (("5-4",), "no steps 5-4"),
        (("last",), "'last' names no step"),
        (("7",), "step 7 was not taken yet: the newest in the journal is step 6"),
        (("5-9",), "step 7 was not taken yet"),
        (("999",), "steps that can be replayed: 1 to 6"),
        (("3",), "step 3 was given up, so nothing was trained: loss is nan"),
        (("1", "--with", "algorithm.group_size=4"), "the batch is the recorded one"),
        (("1", "--with", "rollout.temperature=2"), "the batch is the recorded one"),
        (("1", "--with", "trainer.lr"), "not an override"),
        (("1", "--with", "trainer.lr=-1"), "trainer.lr=-1"),
        (("1", "--with", "trainer.lrr=1"), "unknown key 'trainer.lrr'; did you mean 'trainer.lr'"),
        (("1", "--with", "lr=1"), "unknown key 'lr'; did you mean 'trainer.lr'"),
        (("1", "--with", "no.such=1"), "unknown key 'no.such'\n  -> what a step can be tried"),
        (("1", "--with", "algorithm.objective=none"), "none"),
        (("1", "--set", "trainer.lr=1"), "replayed under its recorded recipe"),
        (("1", "--set", "model.path=gone"), "starting model is not at model.path='gone'"),
    ],
)
def test_what_cannot_be_replayed_is_told(
    folder: RunFolder, words: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        replay(folder, *words)


async def test_steps_that_the_journal_dropped_are_named(root: Path, tmp_path: Path) -> None:
    """Only what lies behind the oldest checkpoint can be replayed."""
    made = SteppedRun(small_recipe(root, run={"dir": str(tmp_path)})).open().step().step()
    folder = (await made.rotate()).checkpoint().step().close()
    (folder.journal / "000001-000001.journal").unlink()
    assert replay(folder, "3") == 0
    assert replay(folder, "all") == 0
    with pytest.raises(ConfigError, match=r"step 2 is not in the journal any more.*with step 3"):
        replay(folder, "2")
    shutil.rmtree(folder.checkpoints)
    with pytest.raises(ConfigError, match="no checkpoint reaches it"):
        replay(folder, "3")
    shutil.rmtree(folder.journal)
    with pytest.raises(ConfigError, match="no trainer has written a journal"):
        replay(folder, "3")


def trained_in(folder: RunFolder, rollout_id: str) -> Entry:
    (found,) = [
        entry
        for entry in entries(folder)
        if isinstance(entry.record, Arrived) and entry.record.rollout_id == rollout_id
    ]
    return found


@pytest.mark.parametrize("where", ["body", "header", "lengths"])
def test_a_changed_byte_is_noticed_and_named(
    folder: RunFolder, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    """Steps before it stay as they were; those behind the next checkpoint, too."""
    entry = trained_in(folder, "3.1")
    path = folder.journal / entry.position.segment
    data = bytearray(path.read_bytes())
    offset = {"body": entry.end.offset - 9, "header": entry.position.offset + 40, "lengths": 5}
    data[offset[where] if where != "lengths" else entry.position.offset + 5] ^= 4
    path.write_bytes(data)
    named = r"damaged at byte \d+, in what came of rollout 3\.1: .*; step 4 was trained on it"
    for step in ("4", "all", "4-5"):
        with pytest.raises(RecordCorrupt, match=named):
            replay(folder, step)
    assert "equal, bit for bit" in capsys.readouterr().out
    assert replay(folder, "2") == 0
    assert replay(folder, "6") == 0


def test_a_byte_that_the_frame_does_not_show_is_noticed_by_the_messages_checksum(
    folder: RunFolder,
) -> None:
    entry = trained_in(folder, "3.1")
    body = bytearray(entry.body)
    body[-9] ^= 1
    rewrite(folder, entry, body=bytes(body))
    with pytest.raises(RecordCorrupt, match=r"rollout 3\.1: checksum .* step 4 was trained on it"):
        replay(folder, "4")


def test_what_differs_is_named_first(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """In the order loss, gradient norm, weights; and so is the step on the way that differs."""
    entry, record = stepped_in(folder, 5)
    assert record.ran_on is not None
    sha256 = record.weights_sha256[:-1] + ("0" if record.weights_sha256[-1] != "0" else "1")
    rewrite(folder, entry, record.model_copy(update={"weights_sha256": sha256}))
    said = told(folder, "all", capsys=capsys)
    assert (said["code"], said["equal"]) == (1, False)
    assert [step["first_difference"] for step in said["steps"]] == [
        *(None, None, None),
        "weights_sha256",
        None,
    ]
    assert replay(folder, "5") == 1
    assert f"hash of the weights '{sha256}' recorded" in capsys.readouterr().out
    shutil.rmtree(folder.checkpoints / "step_5")
    assert replay(folder, "6") == 0
    said_of = capsys.readouterr()
    assert "step 5 on the way: DIFFERS: weights_sha256" in said_of.err
    assert "note: step 5, on the way here, differs already" in said_of.out


def test_the_verdict_names_the_first_and_is_tolerant_of_other_hardware_alone(
    folder: RunFolder,
) -> None:
    _, record = stepped_in(folder, 5)
    assert record.ran_on is not None
    same = StepResult(
        step=5,
        loss=record.loss,
        grad_norm=record.grad_norm,
        metrics={},
        weights_sha256=record.weights_sha256,
        ran_on=record.ran_on,
        logprobs={},
    )
    near = replace(same, loss=same.loss + 1e-7, weights_sha256="other")
    far = replace(same, grad_norm=same.grad_norm * 1.5)
    assert compare(record, same, tolerant=False).bitwise
    assert compare(record, near, tolerant=False).first_difference == "loss"
    assert compare(record, far, tolerant=False).first_difference == "grad_norm"
    tolerated = compare(record, near, tolerant=True)
    assert tolerated.equal and not tolerated.bitwise
    assert compare(record, far, tolerant=True).first_difference == "grad_norm"


def test_on_another_machine_the_tolerance_is_told(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without it, one changed digit is a difference."""
    entry, record = stepped_in(folder, 1)
    assert record.ran_on is not None
    sha256 = "0" * 64
    rewrite(folder, entry, record.model_copy(update={"weights_sha256": sha256}))
    assert replay(folder, "1") == 1
    cpu = record.ran_on.cpu
    other = record.ran_on.model_copy(update={"cpu": "X" * len(cpu)})
    rewrite(folder, entry, record.model_copy(update={"weights_sha256": sha256, "ran_on": other}))
    capsys.readouterr()
    assert replay(folder, "1") == 0
    said = capsys.readouterr().out
    assert f"CPU {'X' * len(cpu)}, here {cpu}" in said
    assert "loss within" in said and "equal, 0 of them bit for bit" in said
    assert told(folder, "1", capsys=capsys)["tolerance"].startswith("loss within")


def test_threads_are_those_of_the_record(folder: RunFolder) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        assert replay(folder, "1") == 0
        assert torch.get_num_threads() == before
    finally:
        torch.set_num_threads(before)


def test_what_if_shows_the_record_beside_what_would_have_been(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """It never compares; steps before it are taken as they were recorded."""
    metrics = MetricsFile(folder.metrics)
    metrics.append("step", {"step": 5, "train/clip_frac": 0.125, "train/lr": 0.002})
    changed = ("--with", "algorithm.clip_high=0.9", "trainer.lr=1e-1")
    said = told(folder, "5-6", *changed, capsys=capsys)
    assert (said["code"], said["equal"]) == (0, None)
    fifth, sixth = said["steps"]
    values = {one["name"]: (one["recorded"], one["replayed"]) for one in fifth["what_if"]}
    assert values["train/lr"] == (0.002, 0.1)
    assert values["train/clip_frac"][0] == 0.125
    assert values["train/kl"][0] is None
    assert values["train/grad_norm"][0] == fifth["recorded"]["grad_norm"]
    assert "equal" not in fifth and "bitwise" not in fifth
    assert sixth["recorded"]["loss"] != sixth["replayed"]["loss"]
    assert replay(folder, "5", *changed) == 0
    out = capsys.readouterr().out
    assert "recorded" in out and "clipped tokens" in out and "equal" not in out
    assert out == trimmed(out)


def test_every_key_of_a_step_is_changeable_or_decides_the_batch() -> None:
    """A new key must be put on one side."""
    keys = {f"algorithm.{key}" for key in AlgorithmSection.model_fields}
    keys |= {f"trainer.{key}" for key in TrainerSection.model_fields}
    batch = {"group_size", "min_group_size", "groups_per_step", "steps_per_publish", "on_stale"}
    batch |= {"max_staleness", "max_version_lag", "filter_zero_variance", "on_failure"}
    batch |= {"max_fruitless"}
    lora = {f"trainer.{key}" for key in ("lora_rank", "lora_alpha", "lora_targets")}
    assert keys - CHANGEABLE == {f"algorithm.{key}" for key in batch} | lora
    assert keys >= CHANGEABLE


def test_another_starting_model_is_refused(folder: RunFolder, tmp_path: Path) -> None:
    build(tmp_path / "other", tied=True, seed=1)
    with pytest.raises(ConfigError, match="other weights than those that the run began with"):
        replay(folder, "1", "--set", f"model.path={tmp_path / 'other'}")


def test_a_damaged_checkpoint_is_left_where_it_is_and_not_used(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = folder.checkpoints / "step_5" / "state" / "weights.safetensors"
    data = bytearray(weights.read_bytes())
    data[-5] ^= 1
    weights.write_bytes(data)
    said = told(folder, "6", capsys=capsys)
    assert (said["code"], said["base"]) == (0, "step_2")
    assert weights.read_bytes() == data
    (folder.checkpoints / "step_2" / "state" / "state.json").write_text("{")
    assert told(folder, "6", capsys=capsys)["base"] == "the starting model"


def test_an_adapter_is_replayed_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = small_recipe(tmp_path, trainer={"lora_rank": 2, "lr": 1e-2})
    folder = SteppedRun(config).open().step().checkpoint().step().close()
    said = told(folder, "all", capsys=capsys)
    assert (said["code"], [step["bitwise"] for step in said["steps"]]) == (0, [True, True])
    assert told(folder, "2", capsys=capsys)["base"] == "step_1"


def test_a_living_trainers_undone_step_is_not_there_yet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = SteppedRun(small_recipe(tmp_path)).open().step().step(finish=False)
    assert told(made.folder, "all", capsys=capsys)["steps"][-1]["step"] == 1
    with pytest.raises(ConfigError, match="step 2 was not taken yet"):
        replay(made.folder, "2")
    made.close()


def test_a_recipe_of_another_release_is_told(folder: RunFolder) -> None:
    (entry,) = [
        e for e in entries(folder) if isinstance(e.record, Opened) and e.record.incarnation == 1
    ]
    record = entry.record
    assert isinstance(record, Opened)
    config = json.loads(json.dumps(record.config).replace('"lr"', '"rl"'))
    rewrite(folder, entry, record.model_copy(update={"config": config}))
    with pytest.raises(WarrenError, match="none of this release"):
        replay(folder, "1")
