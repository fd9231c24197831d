"""A recipe that trains an adapter: a whole run on the transformers engine, its trainer killed."""

import json
import os
import re
import signal
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from infra.weights.fingerprint import fingerprint
from infra.weights.store import WeightStore
from schemas.journal import Published
from tests.e2e.plugs import FREE_STEPS
from tests.e2e.runs import RunRecord, eventually, start, write_recipe
from tests.factories.loading import starting

pytestmark = [pytest.mark.broker, pytest.mark.timeout(400)]
STEPS, RANK, ALPHA = 16, 4, 8.0
KEYS = (
    f"trainer.lora_rank={RANK}",
    f"trainer.lora_alpha={ALPHA}",
    "trainer.lr=1e-2",
    "checkpoint.every=8",
    "weights.keyframe_every=5",
    "supervise.backoff=0.2",
)


def test_a_run_that_trains_an_adapter_survives_its_trainer(
    tmp_path: Path, untaught_folder: Path
) -> None:
    recipe = write_recipe(
        tmp_path,
        "lora",
        model=untaught_folder,
        steps=STEPS,
        reward="tests.e2e.plugs:gated",
        reward_timeout=300,
    )
    gate, record = tmp_path / "gate", RunRecord(tmp_path / "runs" / "lora")
    up = start(tmp_path, "up", str(recipe), *KEYS, gate=gate)
    eventually(lambda: record.num_steps() >= FREE_STEPS, "the first steps")
    trainer = json.loads((record.root / "fleet.json").read_text())["trainer"]
    os.kill(trainer, signal.SIGKILL)
    gate.touch()
    assert up.exit_code() == 0, up.output()
    record.check_whole(steps=STEPS)
    said = up.output()
    assert f"step {FREE_STEPS} taken again: the same weights, bit for bit" in said
    assert re.search(r"policy v4 published: adapter \d+\.\d [kM]B · ", said)

    published = {one.version: one for one in record.records() if isinstance(one, Published)}
    assert sorted(published) == list(range(STEPS + 1))
    store = WeightStore.at(record.root / "weights")
    newest = store.newest()
    assert newest is not None and newest.adapter and newest.version == STEPS
    for version, one in published.items():
        manifest = store.manifest(version)
        assert manifest is not None and manifest.fingerprint == one.fingerprint
    logs = "".join(
        path.read_text() for path in (record.root / "logs" / "latest").glob("rollout-*.log")
    )
    assert len(set(re.findall(r"version \d+ -> (\d+)", logs))) > STEPS // 2
    assert "WARNING" not in logs and "ERROR" not in logs

    checkpoint = record.root / "checkpoints" / f"step_{STEPS}"
    merged = load_file(checkpoint / "hf" / "model.safetensors")
    assert fingerprint(merged) == newest.fingerprint
    state = load_file(checkpoint / "state" / "weights.safetensors")
    assert all("lora_" in name for name in state)

    base = AutoModelForCausalLM.from_pretrained(untaught_folder, dtype=torch.float32)
    opened = PeftModel.from_pretrained(base, str(checkpoint / "adapter")).merge_and_unload()
    tensors = opened.state_dict()
    before = starting(untaught_folder, "float32").tensors
    moved = [name for name in merged if not torch.equal(merged[name], before[name])]
    assert moved
    for name, tensor in merged.items():
        torch.testing.assert_close(tensors[name], tensor, rtol=0, atol=1e-6)
