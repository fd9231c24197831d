"""Starting the toy front door as a user would."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from infra.runs.folder import RunFolder
from tests.processes import popen

FRONT_DOOR = Path(__file__).with_name("toy_roles.py")
RECIPE = """
[run]
name = "{name}"
steps = {steps}
[model]
path = "no-model"
dtype = "float32"
[[data.train]]
path = "no-data.jsonl"
[rollout]
workers = 2
grace = 1
[reward]
functions = [{{ use = "none" }}]
[trainer]
lr = 1e-3
"""


def write_recipe(folder: Path, name: str, steps: int = 3) -> Path:
    """A recipe for the toy roles, and what looks like a model beside it."""
    model = folder / "no-model"
    model.mkdir(exist_ok=True)
    for file in ("config.json", "tokenizer_config.json", "model.safetensors"):
        (model / file).write_text("{}")
    path = folder / "toy.toml"
    path.write_text(RECIPE.format(name=name, steps=steps))
    return path


def start(folder: Path, *arguments: str, url: str = "") -> "subprocess.Popen[str]":
    """`toy_roles.py ...` in `folder`, output captured."""
    environment = {k: v for k, v in os.environ.items() if k != "WARREN_BROKER_URL"}
    if url:
        environment["WARREN_BROKER_URL"] = url
    return popen(
        [sys.executable, str(FRONT_DOOR), *arguments],
        cwd=folder,
        env={**environment, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def eventually(condition: Callable[[], bool], what: str, timeout_s: float = 120.0) -> None:
    """Wait until it holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.05)


def says(path: Path, text: str) -> bool:
    """Whether a log holds the text by now."""
    return path.exists() and text in path.read_text()


def said(root: Path, name: str) -> str:
    """All that a process, as in `rollout-1`, said in the newest `up`, over all its starts."""
    return "".join(path.read_text() for path in RunFolder(root).logs_of(name))


def fleet(root: Path) -> dict[str, int]:
    """What `fleet.json` of a run folder says by now."""
    try:
        found: dict[str, int] = json.loads((root / "fleet.json").read_text())
    except FileNotFoundError:
        return {}
    return found


def processes_of(folder: Path) -> list[int]:
    """Processes whose working directory or command line names the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace")
            here = str((entry / "cwd").readlink())
        except OSError:
            continue
        if str(folder) in words or here.startswith(str(folder)):
            found.append(int(entry.name))
    return found
