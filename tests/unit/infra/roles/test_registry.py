"""Names and import paths."""

import sys
from pathlib import Path

import pytest

from infra.roles import registry
from infra.roles.errors import ConfigError
from infra.roles.registry import import_path, register, resolve


@pytest.fixture(autouse=True)
def empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setitem(registry.BUILTINS, "tool", "builtin_tools")
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in [name for name in sys.modules if name.startswith("builtin_tools")]:
        monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with two tools; importing the second leaves a mark."""
    package = tmp_path / "builtin_tools"
    package.mkdir()
    (package / "__init__.py").write_text("")
    head = "from infra.roles.registry import register\n"
    (package / "hammer.py").write_text(f"{head}@register('tool', 'hammer')\ndef hit(): ...\n")
    (package / "odd.py").write_text(
        f"import pathlib\npathlib.Path({str(tmp_path / 'mark')!r}).touch()\n"
        f"{head}@register('tool', 'saw')\nclass Saw: ...\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_builtin_is_imported_when_asked_for_and_nothing_else(tools: Path) -> None:
    assert resolve("tool", "hammer").__name__ == "hit"
    assert not (tools / "mark").exists()
    assert resolve("tool", "saw").__name__ == "Saw"


def test_an_unknown_name_gets_the_nearest(tools: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown tool 'hamer'; did you mean 'hammer'\?"):
        resolve("tool", "hamer")


def test_an_import_path_reaches_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_reward.py").write_text("class Box:\n    score = staticmethod(len)\n")
    monkeypatch.chdir(tmp_path)
    assert resolve("reward", "my_own_reward:Box.score") is len


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_module:f", "cannot import 'no_such_module'"),
        ("json:dump_", "json has no 'dump_'"),
        ("json:", "json has no ''"),
        (":f", "cannot import ''"),
    ],
)
def test_import_paths_that_lead_nowhere(path: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        import_path(path, what="reward")
    assert message in str(caught.value)


def test_a_module_that_does_not_parse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_reward.py").write_text("def f(:\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="cannot import 'broken_reward'"):
        resolve("reward", "broken_reward:f")


def test_a_name_is_given_once() -> None:
    register("parser", "mine")(len)
    register("parser", "mine")(len)
    with pytest.raises(ValueError, match="parser 'mine' is already"):
        register("parser", "mine")(print)
    with pytest.raises(ValueError, match="unknown kind"):
        register("colour", "red")
    with pytest.raises(ValueError, match="unknown kind"):
        resolve("colour", "red")


def test_a_run_folder_brings_no_code_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "copied_runs" / "evil"
    (folder / "journal").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    for path in (folder / "__init__.py", folder / "payload.py"):
        path.write_text("raise SystemExit('executed')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    with pytest.raises(ConfigError, match="holds data and no code"):
        import_path("copied_runs.evil.payload:score")
