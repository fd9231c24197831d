"""`up` with toy roles that die, leave, and leave things behind: who is started again, and how."""

import os
import signal
from pathlib import Path

import pytest

from infra.roles.fleet.processes import alive
from infra.runs.folder import RunFolder
from tests.integration.roles.toy_run import (
    eventually,
    fleet,
    processes_of,
    said,
    says,
    start,
    write_recipe,
)

pytestmark = [pytest.mark.broker, pytest.mark.timeout(400)]

QUICK = ("supervise.backoff=0.1", "supervise.max_backoff=0.5")


def test_a_killed_role_is_replaced_and_the_run_completes(
    tmp_path: Path, run_name: str, broker_url: str
) -> None:
    recipe = write_recipe(tmp_path, run_name, steps=1000)
    up = start(tmp_path, "up", str(recipe), *QUICK, url=broker_url)
    root = tmp_path / "runs" / run_name
    log = root / "logs" / "latest" / "rollout-1.log"
    eventually(lambda: says(log, "joined"), "joining")
    before = fleet(root)
    assert sorted(before) == ["producer-1", "reward-1", "rollout-1", "rollout-2", "trainer"]
    os.kill(before["rollout-1"], signal.SIGKILL)
    eventually(lambda: said(root, "rollout-1").count("joined") == 2, "joining again")
    assert [path.read_text().count("joined") for path in RunFolder(root).logs_of("rollout-1")] == [
        1,
        1,
    ]
    after = fleet(root)
    assert after["rollout-1"] != before["rollout-1"]
    assert {**after, "rollout-1": 0} == {**before, "rollout-1": 0}
    (root / "enough").touch()
    output, _ = up.communicate(timeout=180)
    assert up.returncode == 0, output
    assert (
        "rollout-1 died (killed by SIGKILL); starting it again in 0.1 s (1 of 5 within 600 s)"
        in output
    )
    assert fleet(root) == {}
    assert processes_of(tmp_path) == []


def test_a_trainer_that_died_goes_on_with_its_run(
    tmp_path: Path, run_name: str, broker_url: str
) -> None:
    recipe = write_recipe(tmp_path, run_name, steps=20)
    first = start(tmp_path, "up", str(recipe), "run.steps=1", url=broker_url)
    first.communicate(timeout=180)
    option = "rollout.engine_options.trainer=die-once"
    up = start(tmp_path, "up", str(recipe), "--purge", option, *QUICK, url=broker_url)
    output, _ = up.communicate(timeout=180)
    assert up.returncode == 0, output
    lines = said(tmp_path / "runs" / run_name, "trainer-1").splitlines()
    words = [line.split() for line in lines if line.startswith("trains ")]
    assert ["--purge" in line for line in words] == [True, False]
    assert ["--resume" in line for line in words] == [False, True]


def test_leavers_are_replaced_if_the_recipe_says_so(
    tmp_path: Path, run_name: str, broker_url: str
) -> None:
    recipe = write_recipe(tmp_path, run_name, steps=1000)
    options = ("rollout.engine_options.rollout-1=leave-once", "supervise.leavers=true", *QUICK)
    up = start(tmp_path, "up", str(recipe), *options, url=broker_url)
    root = tmp_path / "runs" / run_name
    eventually(lambda: said(root, "rollout-1").count("joined") == 2, "two lives")
    (root / "enough").touch()
    output, _ = up.communicate(timeout=180)
    assert up.returncode == 0, output
    assert "rollout-1 left; starting it again" in output
    assert output.count("starting it again") == 1


def test_what_a_dead_role_left_behind_ends_before_its_next_life(
    tmp_path: Path, run_name: str, broker_url: str
) -> None:
    recipe = write_recipe(tmp_path, run_name, steps=1000)
    options = ("rollout.engine_options.rollout-1=spawn-once", *QUICK)
    up = start(tmp_path, "up", str(recipe), *options, url=broker_url)
    root = tmp_path / "runs" / run_name
    eventually(lambda: said(root, "rollout-1").count("joined") == 2, "two lives")
    roles = {*fleet(root).values(), up.pid}
    assert set(processes_of(tmp_path)) <= roles
    up.send_signal(signal.SIGTERM)
    up.communicate(timeout=120)


def test_an_interrupt_during_a_pause_leaves_at_once(
    tmp_path: Path, run_name: str, broker_url: str
) -> None:
    recipe = write_recipe(tmp_path, run_name, steps=1000)
    options = ("rollout.engine_options.rollout-1=die-once", "supervise.backoff=500")
    more = ("supervise.max_backoff=500",)
    up = start(tmp_path, "up", str(recipe), *options, *more, url=broker_url)
    root = tmp_path / "runs" / run_name
    eventually(lambda: bool(fleet(root)) and "rollout-1" not in fleet(root), "the death")
    up.send_signal(signal.SIGINT)
    output, _ = up.communicate(timeout=120)
    assert up.returncode == 130, output
    assert "starting it again in 500 s" in output


def test_roles_and_broker_die_with_a_killed_parent_and_a_new_one_goes_on(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, "orphans", steps=1000)
    up = start(tmp_path, "up", str(recipe))
    root = tmp_path / "runs" / "orphans"
    log = root / "logs" / "latest" / "rollout-1.log"
    eventually(lambda: says(log, "joined"), "joining", 180)
    roles = fleet(root)
    os.kill(up.pid, signal.SIGKILL)
    up.wait(timeout=30)
    again = start(tmp_path, "up", str(recipe), "--resume", "run.steps=2")
    output, _ = again.communicate(timeout=180)
    assert again.returncode == 0, output
    assert not any(alive(pid) for pid in roles.values())
    eventually(lambda: processes_of(tmp_path) == [], "the end of every process")


@pytest.mark.parametrize("flag", ["--resume", "--purge", None])
def test_a_run_that_is_alive_is_left_alone(
    tmp_path: Path, run_name: str, broker_url: str, flag: str | None
) -> None:
    recipe = write_recipe(tmp_path, run_name, steps=1000)
    up = start(tmp_path, "up", str(recipe), url=broker_url)
    root = tmp_path / "runs" / run_name
    eventually(lambda: bool(fleet(root)), "the first start")
    second = start(tmp_path, "up", str(recipe), *filter(None, [flag]), url=broker_url)
    output, _ = second.communicate(timeout=120)
    assert second.returncode == 2
    assert f"is in use: another 'up' (process {up.pid}) runs it" in output
    assert all(alive(pid) for pid in fleet(root).values())
    up.send_signal(signal.SIGTERM)
    up.communicate(timeout=120)
    assert not list((tmp_path / "runs").glob(".*.lock"))


@pytest.mark.parametrize(
    ("override", "words"),
    [("model.path=nowhere", "no such folder"), ("rollout.engine=sglang", "no such toy engine")],
)
def test_what_cannot_work_is_refused_before_anything_exists(
    tmp_path: Path, override: str, words: str
) -> None:
    recipe = write_recipe(tmp_path, "hopeless")
    up = start(tmp_path, "up", str(recipe), override)
    output, _ = up.communicate(timeout=120)
    assert up.returncode == 2
    assert output.count(words) == 1
    assert not (tmp_path / "runs").exists()
