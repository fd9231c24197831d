"""Beginning a run on disk."""

import json
import os
import stat
from dataclasses import asdict
from pathlib import Path

import pytest

from infra.roles.errors import ConfigError
from infra.roles.fleet.run_folder import (
    claimed,
    describe_run,
    prepare_folder,
    write_atomically,
)
from infra.runs.code_version import code_version
from infra.runs.folder import RunFolder
from schemas.config import RunConfig


def config(folder: Path, name: str = "one", url: str = "") -> RunConfig:
    return RunConfig.model_validate(
        {
            "run": {"name": name, "steps": 1, "dir": str(folder)},
            "broker": {"url": url},
            "model": {"path": "m"},
            "data": {"train": [{"path": "d.jsonl"}]},
            "reward": {"functions": [{"use": "exact"}]},
            "trainer": {"lr": 0.1},
        }
    )


def test_the_folder_says_how_the_run_was_configured(tmp_path: Path) -> None:
    folder = prepare_folder(config(tmp_path, url="amqp://u:geheim@h/"))
    written = json.loads(folder.config.read_text())
    assert written["broker"]["url"] == "amqp://u:***@h/"
    assert RunConfig.model_validate(written).run.name == "one"
    assert folder.latest_logs.is_dir()


def test_the_folder_says_which_code_made_the_run(tmp_path: Path) -> None:
    folder = prepare_folder(config(tmp_path))
    written = json.loads(folder.code.read_text())
    assert written == asdict(code_version())
    assert len(written["commit"]) in (0, 40)


def test_it_is_described_again_only_when_something_changed(tmp_path: Path) -> None:
    """A trainer that somebody starts by hand does so, too."""
    folder = RunFolder(tmp_path / "one")
    describe_run(config(tmp_path), folder)
    before = folder.config.stat().st_ino, folder.code.stat().st_ino
    describe_run(config(tmp_path), folder)
    assert (folder.config.stat().st_ino, folder.code.stat().st_ino) == before
    describe_run(config(tmp_path, "two"), folder)
    assert json.loads(folder.config.read_text())["run"]["name"] == "two"


def test_each_up_logs_into_a_folder_of_its_own(tmp_path: Path) -> None:
    for attempt in range(1, 12):
        folder = prepare_folder(config(tmp_path), resume=attempt > 1)
        assert folder.latest_logs.readlink() == Path(f"attempt_{attempt}")
        (folder.latest_logs / "trainer-1.log").write_text(str(attempt))
    assert (folder.logs / "attempt_1" / "trainer-1.log").read_text() == "1"
    for name in ("trainer-1.10.log", "trainer-1.2.log", "trainer-11.log"):
        (folder.latest_logs / name).touch()
    names = [path.name for path in folder.logs_of("trainer-1")]
    assert names == ["trainer-1.log", "trainer-1.2.log", "trainer-1.10.log"]
    assert folder.logs_of("rollout-1") == []


def test_latest_follows(tmp_path: Path) -> None:
    for name in ("one", "two"):
        prepare_folder(config(tmp_path, name))
        assert (tmp_path / "latest").readlink() == Path(name)


def test_a_folder_that_is_no_run_is_neither_used_nor_removed(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "thesis.tex").touch()
    for purge in (False, True):
        with pytest.raises(ConfigError, match=r"exists already\n.* it holds no run, run\.name"):
            prepare_folder(config(tmp_path), purge=purge)
    assert (tmp_path / "one" / "thesis.tex").exists()


def test_nothing_to_resume(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing to resume"):
        prepare_folder(config(tmp_path), resume=True)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot write the run folder"):
        prepare_folder(config(tmp_path / "file"))


def test_a_run_folder_has_one_up_at_a_time(tmp_path: Path) -> None:
    place = tmp_path / "runs"
    with claimed(config(place)):
        assert [path.name for path in place.iterdir()] == [".one.lock"]
        with (
            pytest.raises(ConfigError, match=rf"another 'up' \(process {os.getpid()}\)"),
            claimed(config(place)),
        ):
            pass
        with claimed(config(place, "two")):
            pass
    assert list(place.iterdir()) == []
    with claimed(config(place)):
        pass


def test_a_lock_of_the_dead_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / ".one.lock").write_text("4711")
    with claimed(config(tmp_path)):
        assert (tmp_path / ".one.lock").read_text() == str(os.getpid())


def test_a_place_that_cannot_be_locked(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(ConfigError, match="cannot write the run folder"),
        claimed(config(tmp_path / "file")),
    ):
        pass


def test_secrets_are_written_for_the_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "url"
    write_atomically(path, "old", mode=0o644)
    write_atomically(path, "new", mode=0o600)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["url"]


def test_a_run_that_is_purged_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    prepare_folder(config(tmp_path))
    prepare_folder(config(tmp_path), purge=True)
    assert f"removing the run that is in {tmp_path / 'one'}" in caplog.text
