"""Which run a tool looks at."""

import argparse
from pathlib import Path

import pytest

from infra.roles.command.target import Target, add_run, add_run_option, target
from infra.roles.errors import ConfigError
from infra.runs.folder import RunFolder
from schemas.config import RunConfig


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`runs/mine`, which is the latest."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "runs" / "mine"
    path.mkdir(parents=True)
    config = RunConfig.model_validate(
        {
            "run": {"name": "mine", "steps": 9},
            "model": {"path": "m"},
            "data": {"train": [{"path": "t.jsonl"}]},
            "reward": {"functions": [{"use": "exact_match"}]},
            "trainer": {"lr": 1e-3},
        }
    )
    (path / "config.json").write_text(config.model_dump_json())
    path.with_name("latest").symlink_to("mine")
    return path


def by_position(*words: str) -> Target:
    parser = argparse.ArgumentParser()
    add_run(parser)
    return target(parser.parse_args(words))


def by_option(*words: str) -> Target:
    parser = argparse.ArgumentParser()
    add_run_option(parser)
    return target(parser.parse_args(words))


def test_the_latest_run_is_meant_when_none_is_named(folder: Path) -> None:
    for found in (by_position(), by_position("run.seed=3"), by_option("--set", "run.seed=3")):
        assert found.config.run.name == "mine"
        assert found.folder == RunFolder(folder)
    assert by_position("run.seed=3").config.run.seed == 3
    assert by_option("--set", "run.seed=3").config.run.seed == 3


def test_a_copied_folder_is_taken_where_it_is(folder: Path, tmp_path: Path) -> None:
    copy = folder.rename(tmp_path / "copy")
    for found in (by_position("copy"), by_option("--run", str(copy))):
        assert found.folder == RunFolder(copy)


def test_a_recipe_names_the_folder_that_its_run_would_have(folder: Path) -> None:
    recipe = str(folder.joinpath("config.json").rename(folder.parent / "recipe.json"))
    assert by_position(recipe).folder == RunFolder(folder)
    found = by_position(recipe, "run.name=other")
    assert found.folder == RunFolder(folder.with_name("other"))


def test_what_is_no_run_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="no run yet"):
        by_position()
