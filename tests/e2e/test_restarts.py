"""`up` alone: every role is killed under it, and the run completes as if nothing had been."""

import hashlib
import json
import os
import signal
from pathlib import Path

import pytest

from schemas.journal import Arrived, Batch
from tests.e2e.plugs import FREE_STEPS
from tests.e2e.runs import RunRecord, eventually, finish, start, write_recipe

pytestmark = [pytest.mark.broker, pytest.mark.timeout(400)]
STEPS = 6


def test_every_role_is_killed_once_and_the_run_completes(
    tmp_path: Path, untaught_folder: Path
) -> None:
    recipe = write_recipe(
        tmp_path,
        "killed",
        model=untaught_folder,
        steps=STEPS,
        reward="tests.e2e.plugs:gated",
        reward_timeout=300,
    )
    gate, record = tmp_path / "gate", RunRecord(tmp_path / "runs" / "killed")
    up = start(tmp_path, "up", str(recipe), "supervise.backoff=0.2", gate=gate)
    eventually(lambda: record.num_steps() >= FREE_STEPS, "the first steps")

    def fleet() -> dict[str, int]:
        found: dict[str, int] = json.loads((record.root / "fleet.json").read_text())
        return found

    before = fleet()
    victims = ("trainer", "producer-1", "rollout-1", "reward-1")
    for name in victims:
        os.kill(before[name], signal.SIGKILL)
    eventually(
        lambda: all(fleet().get(name, 0) not in (0, before[name]) for name in victims),
        "the restarts",
    )
    gate.touch()
    assert up.exit_code() == 0, up.output()

    for name in victims:
        assert f"{name} died (killed by SIGKILL); starting it again in 0.2 s" in up.output()
        assert up.says(f"{name} runs again")
    assert up.output().count("starting it again") == len(victims)
    assert not (record.root / "fleet.json").exists()
    record.check_whole(steps=STEPS)
    check_replays(tmp_path, record)


def check_replays(folder: Path, record: RunRecord) -> None:
    """Every step is replayed bit for bit, also those of the killed trainer, from a folder that
    stays as it is; a byte changed in what one was trained on is noticed and named."""
    before = files_of(record.root)
    words = ("replay", "step", "all", "--run", str(record.root))
    code, said = finish(folder, *words)
    assert code == 0, said
    assert f"{STEPS} steps: equal, bit for bit" in said
    assert files_of(record.root) == before

    batch = next(one for one in record.records() if isinstance(one, Batch) and one.step == 3)
    harmed = next(
        entry
        for entry in record.entries()
        if isinstance(entry.record, Arrived) and entry.record.rollout_id == batch.members[0]
    )
    path = record.root / "journal" / harmed.position.segment
    data = bytearray(path.read_bytes())
    data[harmed.end.offset - 9] ^= 1
    path.write_bytes(data)
    code, said = finish(folder, "replay", "step", "3", "--run", str(record.root))
    assert code == 1, said
    assert f"rollout {batch.members[0]}: " in said and "step 3 was trained on it" in said


def files_of(root: Path) -> dict[Path, tuple[str, int]]:
    """Content and time of each file of a run that has ended."""
    return {
        path: (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in root.rglob("*")
        if path.is_file()
    }
