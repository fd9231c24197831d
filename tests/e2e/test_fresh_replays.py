"""`replay rollout --fresh`: the same weights and seed repeat a rollout, others do what they do."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from consumers.rollout.replay.fresh import generate
from consumers.rollout.replay.versions import KeptVersions
from infra.roles.command.cli import main
from infra.runs.asked import budgets_of, prompt_hash, sampling_of
from infra.runs.folder import RunFolder
from infra.weights.errors import WeightsCorrupt
from infra.weights.hf_folder import prepare_folder
from infra.weights.store import WeightStore
from run import TOOLS
from schemas.chat import ChatMessage, Speaker
from schemas.config import RunConfig
from schemas.headers import Purpose
from schemas.journal import Published
from schemas.work import Rollout, RolloutTask, Trajectory
from tests.e2e.runs import rows
from tests.factories.loading import starting
from tests.factories.replays import arrival, journal

STEP = 5
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def run(tmp_path: Path, caller_folder: Path, untaught_folder: Path) -> RunFolder:
    """Version 1 in the store, version 2 in a checkpoint of step 5, version 3 lost; a rollout of
    version 1 that called its tool."""
    config = RunConfig.model_validate(
        {
            "run": {"name": "mine", "steps": 9, "seed": 3},
            "model": {"path": str(untaught_folder), "dtype": "float32"},
            "data": {"train": [{"path": "t.jsonl"}]},
            "rollout": {
                "agent": "tool",
                "tools": ["infra.recipes.demo.tool:add"],
                "parser": "infra.recipes.demo.calls:CompactCalls",
                "max_prompt_tokens": 16,
                "max_response_tokens": 18,
                "max_turn_tokens": 18,
                "max_turns": 2,
                "temperature": 0.0,
            },
            "reward": {"functions": [{"use": "exact_match"}]},
            "trainer": {"lr": 1e-3},
        }
    )
    root = RunFolder(tmp_path / "mine")
    root.root.mkdir()
    root.config.write_text(config.model_dump_json())
    caller, untaught = starting(caller_folder, "float32"), starting(untaught_folder, "float32")
    store = WeightStore.at(root.weights(config))
    store.publish(caller.tensors, version=1, run_id="r", incarnation=1, step=1, dtype="float32")
    hf = root.checkpoints / f"step_{STEP}" / "hf"
    shutil.copytree(untaught_folder, hf)
    written = journal(root.journal, [])
    for version, step, weights in ((1, 1, caller), (2, STEP, untaught), (3, 6, caller)):
        written.append(Published(version=version, step=step, fingerprint=weights.fingerprint))
    written.append(*arrival(Trajectory(reward=1.0, rollout=recorded(config, root))))
    written.close()
    return root


def recorded(config: RunConfig, root: RunFolder) -> Rollout:
    """What version 1 makes of the first row."""
    messages = (ChatMessage(role=Speaker.USER, content=rows(1)[0]["prompt"]),)
    task = RolloutTask(
        rollout_id="3.1",
        group=3,
        index=1,
        row=0,
        agent="tool",
        messages=messages,
        prompt_hash=prompt_hash(messages),
        tools=config.rollout.tools,
        sampling=sampling_of(config, Purpose.TRAIN),
        budgets=budgets_of(config),
    )
    kept = KeptVersions(config, root, starting=Path(config.model.path))
    with kept.prepared(1) as weights:
        rollout = asyncio.run(generate(config, weights, task))
    assert rollout.progress.tool_results
    return rollout


def fresh(run: RunFolder, *words: str) -> int:
    argv = ["replay", "rollout", "3.1", "--fresh", *words, "--run", str(run.root)]
    return main(argv, tools=TOOLS, roles={}, entry=Path("run.py"))


def test_the_versions_own_weights_repeat_it_tool_and_all(run, capsys):
    assert fresh(run) == 0
    shown = capsys.readouterr().out
    assert "fresh: version 1, seed 3, engine transformers" in shown
    assert "turn 2 · tool · equal" in shown
    assert "every token is the same" in shown


@pytest.mark.vllm
def test_vllm_repeats_greedily_what_another_engine_recorded_tool_and_all(run, capsys):
    words = ("--set", "rollout.engine=vllm", "--version", "1", "--seed", "11")
    assert fresh(run, *words) == 0
    shown = capsys.readouterr().out
    assert "fresh: version 1, seed 11, engine vllm" in shown
    assert "turn 2 · tool · equal" in shown
    assert "every token is the same" in shown
    assert "log-probabilities of the sampled tokens differ by at most" in shown


def test_weights_of_a_checkpoint_and_another_seed_do_something_else(run, capsys):
    assert fresh(run, "--version", "2", "--seed", "11", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["version"], told["seed"]) == (2, 11)
    assert told["first_differing_token"] is not None
    assert told["recorded"]["reward"] == 1.0
    assert {v for v, _ in told["fresh"]["progress"]["tokens"]["versions"]} == {-1, 2}


def test_a_version_that_is_gone_is_exit_2_and_names_those_that_are_not(run, capsys):
    assert fresh(run, "--version", "3") == 2
    assert "version 3 are not kept any more\n  -> versions that are: 1 to 2\n" in (
        capsys.readouterr().err
    )


def test_a_version_that_never_was_is_exit_2_and_says_so(run, capsys):
    for number in ("4", "-1"):
        assert fresh(run, f"--version={number}") == 2
        assert f"version {number} was never published: the newest is version 3\n" in (
            capsys.readouterr().err
        )


def test_all_at_once_is_refused_with_what_does_all(capsys):
    words = ["replay", "rollout", "all", "--fresh", "--step", "3"]
    with pytest.raises(SystemExit) as ended:
        main(words, tools=TOOLS, roles={}, entry=Path("run.py"))
    assert ended.value.code == 2
    assert "one rollout at a time: name it" in capsys.readouterr().err


def test_a_checkpoint_of_other_weights_is_refused(run, caller_folder, capsys):
    hf = run.checkpoints / f"step_{STEP}" / "hf"
    shutil.copy(caller_folder / "model.safetensors", hf / "model.safetensors")
    assert fresh(run, "--version", "2") == 1
    assert "version 2 has fingerprint" in capsys.readouterr().err


def test_a_folder_without_weights_is_none(tmp_path):
    with pytest.raises(WeightsCorrupt, match="holds no safetensors file"):
        prepare_folder(tmp_path, dtype="float32", version=1, promised="")
