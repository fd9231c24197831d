"""What `run.py storm` makes of its words."""

from pathlib import Path

import pytest

from infra.roles.broker_url import BROKER_VARIABLE
from infra.roles.errors import ConfigError
from infra.roles.fleet.run_folder import claimed
from infra.roles.settings import load_config
from infra.storm.command import parse_kinds, run, stormproof
from infra.storm.screen import show
from infra.storm.storm import processes_of, queues_of
from schemas.config import RunConfig
from schemas.storm import FaultCount, FaultKind, StormReport


def config(*overrides: str) -> RunConfig:
    return load_config("demo", overrides)


def test_no_kinds_are_all_kinds() -> None:
    assert set(parse_kinds("")) == set(FaultKind)
    assert set(parse_kinds("kill, cut,kill")) == {FaultKind.KILL, FaultKind.CUT}


def test_an_unknown_kind_is_named_with_those_that_exist() -> None:
    with pytest.raises(ConfigError, match="unknown fault 'kil'") as caught:
        parse_kinds("kil")
    assert "broker_wipe" in caught.value.hint


def test_what_is_there_is_not_stormed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(BROKER_VARIABLE, raising=False)
    (tmp_path / "demo").mkdir()
    with pytest.raises(ConfigError, match="exists already") as caught:
        run(config(f"run.dir={tmp_path}"), minutes=1, seed=0, entry=Path("run.py"))
    assert "--purge" in caught.value.hint


def test_a_run_that_is_alive_is_not_purged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(BROKER_VARIABLE, raising=False)
    kept = tmp_path / "demo" / "journal"
    kept.mkdir(parents=True)
    recipe = config(f"run.dir={tmp_path}")
    with claimed(recipe), pytest.raises(ConfigError, match="is in use"):
        run(recipe, minutes=1, seed=0, purge=True, entry=Path("run.py"))
    assert kept.exists()


def test_a_configured_broker_is_not_stormed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BROKER_VARIABLE, "amqp://me:secret@example.org/")
    with pytest.raises(ConfigError, match="brings its own") as caught:
        run(config(f"run.dir={tmp_path}"), minutes=1, seed=0, entry=Path("run.py"))
    assert "secret" not in str(caught.value)


def test_a_stormy_supervisor_never_tires_and_waits_no_longer_than_before() -> None:
    supervise = stormproof(config("supervise.restarts=1", "supervise.max_backoff=1")).supervise
    assert supervise.restarts > 10_000
    assert supervise.leavers
    assert (supervise.backoff, supervise.max_backoff) == (0.5, 1.0)


def test_what_is_hit_is_what_runs() -> None:
    recipe = config("rollout.workers=2", "reward.workers=1")
    names = ("trainer", "producer-1", "rollout-1", "rollout-2", "reward-1")
    assert processes_of(recipe) == names
    assert "eval_prompts" in queues_of(recipe)
    assert "eval_prompts" not in queues_of(config("data.eval=[]"))


def test_the_screen_shows_breaches_and_how_to_repeat_the_storm() -> None:
    report = StormReport(
        seed=3,
        kills=4,
        faults={FaultKind.KILL: FaultCount(injected=4, survived=3)},
        generated=100,
        trained=90,
        lost=0,
        trained_twice=0,
        ledger_imbalance=0,
        dead_letters=0,
        unexplained_dead_letters=0,
        recovery_seconds={"worker": 2.25, "broker": None},
        breaches=("kill of trainer at 3.0 s was not survived",),
    )
    shown = show(report, again="run.py storm demo --seed 3")
    assert "kill                      4         3" in shown
    assert "again: run.py storm demo --seed 3" in shown
    assert "kill of trainer at 3.0 s was not survived" in shown
    assert "no breach" not in shown
    assert "no breach" in show(report.model_copy(update={"breaches": ()}), again="x")
