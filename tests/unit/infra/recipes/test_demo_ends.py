"""What the demo prepares, and how it judges and shows a run."""

import json
import random

import pytest

from infra.recipes.demo import prepare as preparing
from infra.recipes.demo.chart import draw, read_curve, table
from infra.recipes.demo.marks import judge
from infra.recipes.demo.prepare import Prepared, prepare
from infra.roles.settings import load_config

GOOD = {
    "reward_final": 0.93,
    "snapshots_resumed": 50,
    "snapshots_resumed_elsewhere": 10,
    "ledger": {"balanced": True},
    "trained_twice": 0,
}


def test_a_good_run_reaches_every_mark():
    assert [mark.name for mark in judge(GOOD) if not mark.reached] == []


@pytest.mark.parametrize(
    ("change", "missed"),
    [
        ({"reward_final": 0.899}, "reward_final >= 0.9"),
        ({"reward_final": None}, "reward_final >= 0.9"),
        ({"snapshots_resumed": 49}, "snapshots_resumed >= 50"),
        ({"snapshots_resumed_elsewhere": 9}, "snapshots_resumed_elsewhere >= 10"),
        ({"ledger": {"balanced": False}}, "ledger balanced"),
        ({"ledger": None}, "ledger balanced"),
        ({"trained_twice": 1}, "trained_twice = 0"),
        ({"trained_twice": None}, "trained_twice = 0"),
    ],
)
def test_a_missed_mark_is_named(change, missed):
    assert [mark.name for mark in judge(GOOD | change) if not mark.reached] == [missed]


@pytest.fixture
def metrics(tmp_path):
    lines = [
        {"kind": "eval", "version": 0, "eval/reward": 0.05},
        {"kind": "step", "step": 1, "version": 0, "reward/mean": 0.2, "reward/called": 0.1},
        {"kind": "step", "step": 2, "version": 1, "reward/mean": 0.9},
        {"kind": "step", "step": 2, "version": 1, "reward/mean": 0.6},
        {"kind": "eval", "version": 2, "eval/reward": 0.5},
        {"kind": "end"},
    ]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"kind": "st')
    return path


def test_a_curve_is_read_in_order_and_the_last_word_counts(metrics):
    steps, evals = read_curve(metrics)
    assert [(s["step"], s["reward/mean"]) for s in steps] == [(1, 0.2), (2, 0.6)]
    assert [e["version"] for e in evals] == [0, 2]
    assert table(evals).splitlines()[2] == "        2   0.500  " + "#" * 20


def test_a_chart_is_a_picture(metrics, tmp_path):
    png = tmp_path / "reward.png"
    draw(metrics, png, title="t")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert png.stat().st_size > 5_000


def test_a_chart_of_a_run_that_never_stepped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("")
    draw(path, tmp_path / "reward.png", title="t")
    assert (tmp_path / "reward.png").exists()


def test_what_is_prepared_is_found_again(tmp_path, monkeypatch):
    made = []

    def make(draft, seed):
        made.append(seed)
        draft.model.mkdir()
        return {"seed": seed, "draw": random.random()}

    monkeypatch.setattr(preparing, "_make", make)
    first = prepare(tmp_path, seed=3).facts()
    assert prepare(tmp_path, seed=3).facts() == first
    assert made == [3]
    prepare(tmp_path, seed=4)
    assert made == [3, 4]
    Prepared.of(tmp_path, 3).record.write_text('{"made_by": "older code"}')
    prepare(tmp_path, seed=3)
    assert made == [3, 4, 3]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["demo-base-seed3", "demo-base-seed4"]


def test_a_preparation_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def make(draft, seed):
        draft.model.mkdir()
        raise RuntimeError("out of luck")

    monkeypatch.setattr(preparing, "_make", make)
    with pytest.raises(RuntimeError):
        prepare(tmp_path, seed=0)
    assert list(tmp_path.iterdir()) == []


def test_the_recipe_is_valid_and_points_at_seed_0():
    config = load_config("demo")
    assert config.rollout.workers == 2
    assert config.rollout.on_sync == "republish"
    assert config.model.path == str(Prepared.of(preparing.Path("runs"), 0).model)
    assert config.data.train[0].path == str(Prepared.of(preparing.Path("runs"), 0).train)
    assert config.data.eval[0].path == str(Prepared.of(preparing.Path("runs"), 0).eval)
