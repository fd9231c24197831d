"""`run.py replay rollout ID --rescore`: other rewards beside those that were given."""

import json
from pathlib import Path

import pytest

from infra.roles.command.cli import main
from infra.runs.folder import RunFolder
from run import TOOLS
from schemas.config import RunConfig
from schemas.headers import Purpose
from schemas.work import Trajectory
from tests.factories.replays import arrival, journal
from tests.unit.reward.reward_rollouts import rollout

SAMPLES = "tests.unit.reward.reward_samples"
SECRET = "\x1b]0;gone\x07"


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """Two groups, an evaluation and a damaged record; the recipe's function obeys ground truths."""
    config = RunConfig.model_validate(
        {
            "run": {"name": "mine", "steps": 9},
            "model": {"path": "no model is needed"},
            "data": {"train": [{"path": "t.jsonl"}]},
            "reward": {"functions": [{"use": f"{SAMPLES}:command"}], "timeout": 20},
            "trainer": {"lr": 1e-3},
        }
    )
    root = RunFolder(tmp_path / "mine")
    root.root.mkdir()
    root.config.write_text(config.model_dump_json())
    told = [(3, 0, 1.0, 1.0), (3, 1, 1.0, 0.0), (4, 0, 0.0, 0.0), (4, 1, 0.0, 0.0)]
    members = [
        Trajectory(
            reward=old,
            rewards={"command": old},
            rollout=rollout(new, rollout_id=f"{group}.{index}", group=group, index=index),
        )
        for group, index, old, new in told
    ]
    evaluated = rollout(
        0.5, rollout_id="eval7.0", group=7, index=0, purpose=Purpose.EVAL, text=SECRET
    )
    members.append(Trajectory(reward=0.5, rewards={"command": 0.5}, rollout=evaluated))
    written = journal(root.journal, members)
    record, body = arrival(members[0])
    written.append(record.model_copy(update={"rollout_id": "5.0", "group": 5}), body + b" ")
    written.close()
    return root


def rescore(folder: RunFolder, *words: str) -> int:
    argv = ["replay", "rollout", *words, "--rescore", "--run", str(folder.root)]
    return main(argv, tools=TOOLS, roles={}, entry=Path("run.py"))


def test_one_rollout_is_shown_function_by_function(folder, capsys):
    named = ["--function", f"{SAMPLES}:command=2", "--function", f"{SAMPLES}:whole=0.5"]
    assert rescore(folder, "3.1", *named) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["command", "2", "1", "0", "-1"] in shown
    assert ["whole", "0.5", "-", "16"] in shown
    assert ["reward", "1", "8", "+7"] in shown


def test_the_recipes_functions_are_asked_where_none_is_named(folder, capsys):
    assert rescore(folder, "3.0", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "rollout_id": "3.0",
        "purpose": "train",
        "old": {"command": 1.0, "reward": 1.0},
        "new": {"command": 1.0, "reward": 1.0},
        "error": None,
    }


def test_all_are_summed_up_and_one_without_a_score_fails_the_whole(folder, capsys):
    assert rescore(folder, "all") == 1
    shown = capsys.readouterr().out
    lines = [line.split() for line in shown.splitlines()]
    assert "6 rollouts scored anew" in shown
    assert "1 without a score" in shown
    assert ["command", "1", "0.5", "0.3", "1"] in lines
    assert ["reward", "0.5", "0.3", "1"] in lines
    assert "2 groups to train on: rewards differ in 1, before in 0" in shown
    assert ["3.1", "1", "0", "-1"] in lines
    assert "5.0: damaged in the journal: checksum" in shown


def test_the_totals_are_for_machines_too(folder, capsys):
    assert rescore(folder, "all", "--json") == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["rollout_id"] for line in lines[:-1]] == [
        "3.0",
        "3.1",
        "4.0",
        "4.1",
        "eval7.0",
        "5.0",
    ]
    assert lines[-1] == {
        "rollouts": 6,
        "failed": 1,
        "functions": {
            "command": {"old": 0.5, "new": 0.3, "changed": 1},
            "reward": {"old": 0.5, "new": 0.3, "changed": 1},
        },
        "groups": {"all": 2, "unequal_old": 0, "unequal_new": 1},
    }


def test_those_of_one_purpose_alone(folder, capsys):
    assert rescore(folder, "all", "--purpose", "eval", "--quiet") == 0
    shown = capsys.readouterr().out
    assert "1 rollouts scored anew" in shown
    assert "groups" not in shown


def test_what_a_function_says_is_escaped(folder, capsys):
    assert rescore(folder, "eval7.0", "--function", f"{SAMPLES}:repeats") == 1
    shown = capsys.readouterr().out
    assert r"NO SCORE: reward 'tests.unit.reward.reward_samples:repeats': ValueError: " in shown
    assert r"\x1b]0;gone\x07" in shown
    assert shown.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("3.0", "--function", f"{SAMPLES}:whole=much"), "'much' is no weight"),
        (("3.0", "--function", "nothing"), "unknown reward 'nothing'"),
        (("9.9",), "no such trajectory"),
    ],
)
def test_what_is_not_there_is_exit_2(folder, capsys, words, message):
    assert rescore(folder, *words) == 2
    assert message in capsys.readouterr().err
