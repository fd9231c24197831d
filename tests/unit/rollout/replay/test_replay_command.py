"""`run.py replay rollout` on a run folder: what it prints, and its exit code."""

import asyncio
import json
from pathlib import Path

import pytest

from infra.observe.columns import trimmed
from infra.roles.command.cli import main
from infra.runs.folder import RunFolder
from run import TOOLS
from schemas.config import RunConfig
from schemas.journal import Batch
from schemas.work import Rollout, Trajectory, TurnKind
from tests.factories.agent_runs import CALL, OPENING, make_loop, run_uncut, run_with_cuts
from tests.factories.replays import arrival, changed, journal
from tests.factories.rollouts import ScriptedEngine, chatml_folder, make_task, talk

TURNS = [f"so {CALL.format('3+4')}<|im_end|>", "it is \x1b[2J7\u202e!<|im_end|>"]


async def record(renderer) -> list[Rollout]:
    """One uncut, one cut in each of its turns, and one whose end was changed."""
    script = talk(renderer, TURNS, opening=OPENING)
    loop = make_loop(ScriptedEngine(script, chunk=3), renderer)
    tasks = [make_task(f"3.{index}", tools=("calculator",)) for index in range(3)]
    whole = await run_uncut(loop, tasks[0])
    cuts = [turn.start + 4 for turn in whole.progress.turns if turn.kind is TurnKind.ASSISTANT]
    cut = await run_with_cuts(tasks[1], script, renderer, cuts, versions_rise=True)
    other = changed(await run_uncut(loop, tasks[2]), lambda raw: raw.update(finish_reason="length"))
    return [whole, cut, other]


@pytest.fixture
def folder(renderer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run of four rollouts, the last damaged after it was journaled."""
    monkeypatch.chdir(tmp_path)
    chatml_folder(tmp_path / "model")
    config = RunConfig.model_validate(
        {
            "run": {"name": "mine", "steps": 9},
            "model": {"path": "model"},
            "data": {"train": [{"path": "t.jsonl"}]},
            "rollout": {"agent": "tool", "tools": ["calculator"]},
            "reward": {"functions": [{"use": "exact_match"}]},
            "trainer": {"lr": 1e-3},
        }
    )
    root = RunFolder(tmp_path / "runs" / "mine")
    root.root.mkdir(parents=True)
    root.config.write_text(config.model_dump_json())
    (tmp_path / "runs" / "latest").symlink_to("mine")
    trajectories = [
        Trajectory(reward=1.0, rewards={"exact": 1.0}, rollout=rollout)
        for rollout in asyncio.run(record(renderer))
    ]
    written = journal(root.journal, trajectories)
    written.append(Batch(step=1, version=0, groups=(3,), members=("3.1",), closed=(), releases=0))
    arrived, body = arrival(trajectories[0])
    written.append(arrived.model_copy(update={"rollout_id": "3.3"}), body[:-9] + b"0" + body[-8:])
    written.close()
    return root


def replay(*words: str) -> int:
    return main(["replay", "rollout", *words], tools=TOOLS, roles={}, entry=Path("run.py"))


def test_the_walk_is_shown_with_its_cuts_and_no_control_character(folder, capsys):
    assert replay("3.1") == 0
    shown = capsys.readouterr().out
    assert shown == trimmed(shown)
    assert shown.replace("\n", " ").isprintable()
    for part in (
        "rollout 3.1 · train · row 0",
        "rollout-0 takes it up",
        "CUT: sync · snapshot of",
        "rollout-2 takes it up",
        """calculator {"expression": "3+4"} -> '7'""",
        r"\x1b[2J7\u202e!<|im_end|>'",
        "completed: stop",
        "1 tool result, 2 cuts, completed: stop",
    ):
        assert part in shown


def test_quiet_says_only_the_verdict(folder, capsys):
    assert replay("3.1", "--quiet") == 0
    assert capsys.readouterr().out.startswith("equal: ")
    assert replay("3.2", "--quiet") == 1
    assert capsys.readouterr().out.splitlines() == [
        "NOT EQUAL: finish_reason",
        "  recorded  length",
        "  replayed  stop",
    ]


def test_json_is_one_object_per_rollout(folder, capsys):
    assert replay("3.1", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["rollout_id"], told["equal"], told["difference"]) == ("3.1", True, None)
    assert {step["event"] for step in told["steps"]} == {
        "taken", "appended", "sampled", "tool", "cut", "ended",
    }  # fmt: skip
    assert replay("all", "--json") == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["equal"] for line in lines[:-1]] == [True, True, False, False]
    assert "checksum" in lines[3]["difference"]["replayed"]
    assert (lines[-1]["equal"], lines[-1]["not equal"]) == (2, 2)


def test_all_tells_what_differs_and_counts(folder, capsys):
    assert replay("all", "--quiet") == 1
    shown = capsys.readouterr().out
    assert "NOT EQUAL 3.2: finish_reason\n" in shown
    assert "NOT EQUAL 3.3: it is damaged in the journal: checksum" in shown
    assert "4 rollouts replayed" in shown
    assert "2 equal, 2 not" in shown
    assert "1 were cut (2 cuts), 1 resumed by another worker" in shown


def test_all_can_be_those_of_a_step_or_the_first(folder, capsys):
    assert replay("all", "--step", "1", "--json") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["rollout_id"] == "3.1"
    assert replay("all", "--limit", "1", "--json") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["rollout_id"] == "3.0"


def test_a_copied_run_needs_no_model_folder(folder, tmp_path, capsys):
    for step in (8, 10):
        (folder.checkpoints / f"step_{step}").mkdir(parents=True)
    (tmp_path / "model").rename(folder.checkpoints / "step_10" / "hf")
    assert replay("3.1", "--quiet") == 0
    assert "step_10" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("9.9",), "no such trajectory in the journal"),
        (("all", "--step", "7"), "no step 7 in the journal\n  -> steps that are kept: 1 to 1"),
        (("all", "--purpose", "eval"), "'all' for eval"),
        (("3.1", "--set", "run.name=other", "--run", "nowhere"), "no recipe and no run folder"),
    ],
)
def test_what_is_not_there_is_exit_2(folder, capsys, words, message):
    assert replay(*words) == 2
    assert message in capsys.readouterr().err
