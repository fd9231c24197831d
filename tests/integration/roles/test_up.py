"""`up` with toy roles: the end of a run, deaths, interrupts, what is left behind."""

import json
import signal
from pathlib import Path

import pytest

from infra.amqp.admin import Management
from infra.amqp.errors import ManagementUnreachable
from tests.integration.roles.toy_run import eventually, processes_of, says, start, write_recipe

pytestmark = [pytest.mark.broker, pytest.mark.timeout(400)]


def test_a_run_ends_with_the_trainer(tmp_path: Path, run_name: str, broker_url: str) -> None:
    recipe = write_recipe(tmp_path, run_name)
    up = start(tmp_path, "up", str(recipe), "run.seed=7", url=broker_url)
    output, _ = up.communicate(timeout=180)
    assert up.returncode == 0, output
    root = tmp_path / "runs" / run_name
    assert (tmp_path / "runs" / "latest").resolve() == root
    summary = json.loads((root / "summary.json").read_text())
    assert summary["reward_start"] == 0.25
    assert summary["reward_final"] == 0.75
    assert summary["interruptions"] == 6
    assert summary["staleness_max"] == 3
    assert summary["weight_versions"] == 3
    assert summary["seed"] == 7
    assert summary["ledger"]["balanced"] is True
    assert summary["peak_pss_bytes"] > 10_000_000
    assert json.loads((root / "config.json").read_text())["run"]["seed"] == 7
    assert json.loads((root / "code.json").read_text())["version"]
    for log in ("rollout-1", "rollout-2", "producer-1", "reward-1"):
        assert says(root / "logs" / "latest" / f"{log}.log", "the run is over"), log
    password = broker_url.split("@")[0].rsplit(":", 1)[1]
    assert password not in output
    assert "reward_final" in output
    assert processes_of(tmp_path) == []


def test_a_private_broker_comes_and_goes(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, "private")
    up = start(tmp_path, "up", str(recipe))
    url_file = tmp_path / "runs" / "private" / "broker" / "url"
    eventually(url_file.exists, "the url file", 180)
    assert url_file.stat().st_mode & 0o777 == 0o600
    login_file = url_file.with_name("monitoring.json")
    eventually(lambda: seen_by_who_looks(login_file), "the monitoring user", 60)
    assert login_file.stat().st_mode & 0o777 == 0o600
    login = json.loads(login_file.read_text())
    output, _ = up.communicate(timeout=180)
    assert up.returncode == 0, output
    assert "(private node)" in output
    assert f"{login['url']} (to look: {login_file})" in output
    assert login["password"] not in output
    assert not url_file.exists()
    assert processes_of(tmp_path) == []


def seen_by_who_looks(login_file: Path) -> bool:
    """Whether RabbitMQ's pages take the user in the file."""
    if not login_file.exists():
        return False
    login = json.loads(login_file.read_text())
    scheme, _, host = login["url"].partition("://")
    try:
        pages = Management(f"{scheme}://{login['user']}:{login['password']}@{host}")
        return bool(pages.version())
    except ManagementUnreachable:
        return False


@pytest.mark.parametrize(
    ("mode", "code", "words", "reason"),
    [
        ("die", 4, "killed by SIGKILL", "joined"),
        ("raise", 4, "exit code 1", "ZeroDivisionError: the toy broke (toy_roles.py:"),
        ("config", 2, "exit code 2", "-> configure it"),
    ],
)
def test_a_death_too_many_stops_all_and_is_named(
    tmp_path: Path, run_name: str, broker_url: str, mode: str, code: int, words: str, reason: str
) -> None:
    recipe = write_recipe(tmp_path, run_name, steps=1000)
    options = (f"rollout.engine_options.rollout-2={mode}", "supervise.restarts=0")
    up = start(tmp_path, "up", str(recipe), *options, url=broker_url)
    output, _ = up.communicate(timeout=180)
    assert up.returncode == code, output
    assert f"rollout-2 died: {words}" in output
    assert reason in output
    assert processes_of(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_drains(
    tmp_path: Path, run_name: str, broker_url: str, number: signal.Signals
) -> None:
    recipe = write_recipe(tmp_path, run_name, steps=1000)
    up = start(tmp_path, "up", str(recipe), url=broker_url)
    log = tmp_path / "runs" / run_name / "logs" / "latest" / "rollout-1.log"
    eventually(lambda: says(log, "joined"), "joining")
    up.send_signal(number)
    output, _ = up.communicate(timeout=180)
    assert up.returncode == 130, output
    assert says(log, "SIGTERM: handing over and leaving")
    assert says(log, "rollout-1  left")
    assert processes_of(tmp_path) == []


def test_a_second_interrupt_stops_at_once(tmp_path: Path, run_name: str, broker_url: str) -> None:
    recipe = write_recipe(tmp_path, run_name, steps=1000)
    options = ("rollout.engine_options.rollout-1=deaf", "rollout.grace=300")
    up = start(tmp_path, "up", str(recipe), *options, url=broker_url)
    log = tmp_path / "runs" / run_name / "logs" / "latest" / "rollout-1.log"
    eventually(lambda: says(log, "joined"), "joining")
    up.send_signal(signal.SIGINT)
    trainer = tmp_path / "runs" / run_name / "logs" / "latest" / "trainer-1.log"
    eventually(lambda: says(trainer, "trainer  left"), "leaving")
    up.send_signal(signal.SIGINT)
    output, _ = up.communicate(timeout=120)
    assert up.returncode == 130, output
    assert processes_of(tmp_path) == []


def test_nothing_is_left_of_a_role_that_spawned(
    tmp_path: Path, run_name: str, broker_url: str
) -> None:
    recipe = write_recipe(tmp_path, run_name, steps=5)
    option = "rollout.engine_options.rollout-1=spawn"
    up = start(tmp_path, "up", str(recipe), option, url=broker_url)
    output, _ = up.communicate(timeout=180)
    assert up.returncode == 0, output
    assert processes_of(tmp_path) == []


def test_a_used_folder_is_refused_unless_told(
    tmp_path: Path, run_name: str, broker_url: str
) -> None:
    recipe = write_recipe(tmp_path, run_name, steps=1)
    outcomes = []
    for flags in ([], [], ["--resume"], ["--purge"]):
        up = start(tmp_path, "up", str(recipe), *flags, url=broker_url)
        output, _ = up.communicate(timeout=180)
        metrics = tmp_path / "runs" / run_name / "metrics.jsonl"
        outcomes.append((up.returncode, len(metrics.read_text().splitlines()), output))
        attempts = sorted(path.name for path in (metrics.parent / "logs").glob("attempt_*"))
        assert attempts == ["attempt_1", "attempt_2"][: 1 + (flags == ["--resume"])]
    assert [(code, lines) for code, lines, _ in outcomes] == [(0, 4), (2, 4), (0, 8), (0, 4)]
    assert "--resume goes on with it, --purge removes it" in outcomes[1][2]


def test_purge_leaves_alone_a_folder_in_use(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, "busy", steps=1000)
    up = start(tmp_path, "up", str(recipe))
    log = tmp_path / "runs" / "busy" / "logs" / "latest" / "rollout-1.log"
    eventually(lambda: says(log, "joined"), "joining", 180)
    second = start(tmp_path, "up", str(recipe), "--purge")
    output, _ = second.communicate(timeout=120)
    assert second.returncode == 2
    assert "is in use" in output
    up.send_signal(signal.SIGTERM)
    up.communicate(timeout=120)
