"""Which code a run was made with."""

import subprocess
from pathlib import Path

from infra.runs.code_version import CodeVersion, code_version


def git(folder: Path, *words: str) -> str:
    own = ("-c", "user.name=n", "-c", "user.email=e@example.org")
    done = subprocess.run(["git", *own, *words], cwd=folder, capture_output=True, check=True)
    return done.stdout.decode().strip()


def test_a_checkout_tells_its_commit_and_whether_it_was_changed(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("a")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-q", "-m", "first")
    (tmp_path / "untracked").touch()
    clean = code_version(tmp_path)
    assert (clean.commit, clean.dirty) == (git(tmp_path, "rev-parse", "HEAD"), False)
    (tmp_path / "file").write_text("b")
    code_version.cache_clear()
    assert code_version(tmp_path).dirty


def test_an_installed_package_tells_its_version_alone(tmp_path: Path) -> None:
    """Also where somebody's own repository lies around it."""
    git(tmp_path, "init", "-q")
    (tmp_path / "site-packages").mkdir()
    found = code_version(tmp_path / "site-packages")
    assert (found.commit, found.dirty) == ("", False)
    assert str(CodeVersion(version="1.2", commit="", dirty=False)) == "warren 1.2"
    whole = CodeVersion(version="1.2", commit="0123456789abcdef", dirty=True)
    assert str(whole) == "warren 1.2, commit 0123456789ab, changed since"


def test_without_git_it_says_what_it_can(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / ".git").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    code_version.cache_clear()
    assert code_version(tmp_path).commit == ""
