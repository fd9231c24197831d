"""Which code a run was made with: the release, and the commit where it runs from a checkout."""

import functools
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class CodeVersion:
    """What `code.json` in a run folder says."""

    version: str
    """Of the package; empty when it is not installed."""
    commit: str
    """Git's full hash; empty when this is no checkout."""
    dirty: bool
    """Whether tracked files differ from the commit."""

    def __str__(self) -> str:
        words = [f"warren {self.version}".strip()]
        words += [f"commit {self.commit[:12]}"] if self.commit else []
        return ", ".join(words + ["changed since"] * self.dirty)


@functools.cache
def code_version(root: Path = ROOT) -> CodeVersion:
    """Of the program that runs, as it was when it was first asked."""
    try:
        installed = version("warren")
    except PackageNotFoundError:
        installed = ""
    commit = _git(root, "rev-parse", "HEAD") if (root / ".git").exists() else ""
    changed = commit and _git(root, "status", "--porcelain", "--untracked-files=no")
    return CodeVersion(version=installed, commit=commit, dirty=bool(changed))


def _git(root: Path, *words: str) -> str:
    """What git says; nothing when there is none, or it refuses."""
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(root), *words],
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
