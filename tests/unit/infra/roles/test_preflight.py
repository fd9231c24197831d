"""What is tried before a run exists, in a process of its own."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from infra.roles.errors import ConfigError, DeadlinePassed
from infra.roles.fleet import preflight as module
from infra.roles.fleet.preflight import preflight
from infra.roles.fleet.processes import descendants
from schemas.config import RunConfig


def good(config: RunConfig) -> list[str]:
    return [config.run.name]


def bad(config: RunConfig) -> list[str]:
    raise ConfigError("no such thing", hint="take another")


def hang(config: RunConfig) -> list[str]:
    time.sleep(600)
    return []


def broken(config: RunConfig) -> list[str]:
    raise ZeroDivisionError("a bug")


@pytest.fixture
def roles(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Importable modules whose `check` is one of the functions above."""
    for check in (good, bad, hang, broken):
        invented = ModuleType(f"invented_{check.__name__}")
        invented.check = check  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, invented.__name__, invented)
    yield dict.fromkeys(("producer", "reward"), "invented_good")


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    for name in ("config.json", "tokenizer_config.json", "model.safetensors"):
        (tmp_path / name).write_text("{}")
    return RunConfig.model_validate(
        {
            "run": {"name": "one", "steps": 1, "dir": str(tmp_path / "runs")},
            "model": {"path": str(tmp_path)},
            "data": {"train": [{"path": "d.jsonl"}]},
            "reward": {"functions": [{"use": "exact"}]},
            "trainer": {"lr": 0.1},
        }
    )


def test_what_works_passes_without_a_trace(config: RunConfig, roles: dict[str, str]) -> None:
    preflight(config, roles)
    assert not Path(config.run.dir).exists()


def test_a_fault_of_several_roles_is_told_once(config: RunConfig, roles: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        preflight(config, {**roles, "producer": "invented_bad", "reward": "invented_bad"})
    assert str(caught.value) == "no such thing\n  -> take another"


def test_what_needs_a_model_is_not_asked_when_there_is_none(
    config: RunConfig, roles: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError) as caught:
        preflight(config, {**roles, "trainer": "invented_bad", "rollout": "invented_bad"})
    assert "has no weights" in str(caught.value)
    assert "no such thing" not in str(caught.value)


@pytest.mark.parametrize("text", ['{"model_type": ', "[]"])
def test_a_damaged_model_folder_is_named(
    config: RunConfig, roles: dict[str, str], tmp_path: Path, text: str
) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"config\.json cannot be read: .*\n.*copy the model"):
        preflight(config, roles)


def test_a_module_that_is_not_installed(config: RunConfig, roles: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="No module named 'never_written'"):
        preflight(config, {**roles, "reward": "never_written"})


def test_a_bug_in_a_check_is_no_silence(
    config: RunConfig, roles: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="broke off"):
        preflight(config, {**roles, "reward": "invented_broken"})
    assert "ZeroDivisionError: a bug" in capfd.readouterr().err


def test_a_check_that_hangs_is_ended(
    config: RunConfig, roles: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.2)
    before = descendants(os.getpid())
    with pytest.raises(DeadlinePassed, match="took more than 0 s"):
        preflight(config, {**roles, "reward": "invented_hang"})
    assert set(descendants(os.getpid())) <= set(before)
